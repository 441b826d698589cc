"""The init secret: whoever knows it may initialise the instance. Metadata holds only its hash.

A hash is text, `scrypt$N$R$P$SALT$HASH`, the last two hexadecimal. Its numbers are bounded, because
metadata is not always written by us and every attempt costs that much memory and time.
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
# 16 MiB and some 50 ms for an attempt.
N, R, P = 2**14, 8, 1
N_MAX, R_MAX, P_MAX = 2**17, 16, 4
SALT_BYTES_MAX: Final = 64
_FORM: Final = "scrypt$N$R$P$SALT$HASH, as `bootbridge node secret` prints it"


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
    """A new secret, as text that can be pasted, and its hash."""
    secret = secrets.token_urlsafe(SECRET_BYTES).encode()
    return secret, hash_of(secret)


def hash_of(secret: bytes) -> str:
    salt = secrets.token_bytes(SALT_BYTES)
    digest = _Hash(N, R, P, salt, b"").of(secret)
    return f"scrypt${N}${R}${P}${salt.hex()}${digest.hex()}"


def matches(secret: bytes, hashed: str) -> bool:
    """Whether it is that hash's secret, in a time that does not tell how nearly; an empty hash has none."""
    if not hashed:
        return False
    wanted = _parsed(hashed)
    return hmac.compare_digest(wanted.of(secret), wanted.digest)


def check(hashed: Any) -> None:
    """Raises OperatorError for what is no such hash."""
    _parsed(hashed)


def _parsed(hashed: Any) -> _Hash:
    parts = hashed.split("$") if isinstance(hashed, str) else []
    if len(parts) != 6 or parts[0] != "scrypt":
        raise OperatorError("is not the hash of an init secret", hint=_FORM)
    try:
        n, r, p = (int(part) for part in parts[1:4] if part.isascii() and part.isdecimal())
        salt, digest = (binascii.unhexlify(part) for part in parts[4:])
    except ValueError:
        raise OperatorError("is not the hash of an init secret", hint=_FORM) from None
    if not (1 < n <= N_MAX and n & (n - 1) == 0 and 0 < r <= R_MAX and 0 < p <= P_MAX):
        raise OperatorError(f"scrypt with N={n}, R={r}, P={p} is not accepted", hint="hash the secret anew")
    if not 8 <= len(salt) <= SALT_BYTES_MAX or len(digest) != HASH_BYTES:
        raise OperatorError("its salt or hash has a wrong length", hint=_FORM)
    return _Hash(n, r, p, salt, digest)
