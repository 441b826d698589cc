"""The init secret authorises the init of an instance. The metadata contains only its hash.

A hash is the text `scrypt$N$R$P$SALT$HASH`, the last two in hex. Its parameters are bounded, as
other programs may write the metadata, and every attempt costs that much memory and time.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any, Final

from bootbridge.errors import OperatorError

SECRET_BYTES: Final = 32
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
# 16 MiB and about 50 ms per attempt.
N, R, P = 2**14, 8, 1
N_MAX, R_MAX, P_MAX = 2**17, 16, 4
SALT_BYTES_MAX: Final = 64
_FORMAT: Final = "scrypt$N$R$P$SALT$HASH, as `bootbridge node secret` prints it"


@dataclass(frozen=True)
class _Hash:
    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    def of(self, secret: bytes) -> bytes:
        memory = 128 * self.r * (self.n + self.p + 2)
        return hashlib.scrypt(
            secret, salt=self.salt, n=self.n, r=self.r, p=self.p, maxmem=memory, dklen=HASH_BYTES
        )


def make() -> tuple[bytes, str]:
    """Returns a new secret, as printable text, and its hash."""
    secret = secrets.token_urlsafe(SECRET_BYTES).encode()
    return secret, hash_of(secret)


def hash_of(secret: bytes) -> str:
    salt = secrets.token_bytes(SALT_BYTES)
    digest = _Hash(N, R, P, salt, b"").of(secret)
    return f"scrypt${N}${R}${P}${salt.hex()}${digest.hex()}"


def matches(secret: bytes, hashed: str) -> bool:
    """Compares in constant time; an empty hash matches no secret."""
    if not hashed:
        return False
    wanted = _parsed(hashed)
    return hmac.compare_digest(wanted.of(secret), wanted.digest)


def check(hashed: Any) -> None:
    """Raises OperatorError for an invalid hash."""
    _parsed(hashed)


def _parsed(hashed: Any) -> _Hash:
    parts = hashed.split("$") if isinstance(hashed, str) else []
    if len(parts) != 6 or parts[0] != "scrypt":
        raise OperatorError("invalid init secret hash", hint=_FORMAT)
    try:
        n, r, p = (int(part) for part in parts[1:4] if part.isascii() and part.isdecimal())
        salt, digest = (binascii.unhexlify(part) for part in parts[4:])
    except ValueError:
        raise OperatorError("invalid init secret hash", hint=_FORMAT) from None
    if not (1 < n <= N_MAX and n & (n - 1) == 0 and 0 < r <= R_MAX and 0 < p <= P_MAX):
        raise OperatorError(f"unsupported scrypt parameters N={n}, R={r}, P={p}", hint="hash it again")
    if not 8 <= len(salt) <= SALT_BYTES_MAX or len(digest) != HASH_BYTES:
        raise OperatorError("invalid length of salt or hash", hint=_FORMAT)
    return _Hash(n, r, p, salt, digest)
