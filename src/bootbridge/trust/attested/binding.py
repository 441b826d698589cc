"""What evidence is about: this session, these nonces, and the role of the one who proves.

The server's key is made for one connection, so that naming it names the connection: somebody in the middle
would have to have it. The role keeps a side from being shown its own evidence as the other's.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

Role = Literal["client", "server"]
NONCE_BYTES: Final = 32
_DOMAIN: Final = b"bootbridge attested TLS v1"


def statement(label: str, role: Role, client_nonce: bytes, server_nonce: bytes, server_key: bytes) -> bytes:
    """32 bytes; ``role`` is the prover's, ``server_key`` the server's DER SubjectPublicKeyInfo."""
    parts = (
        _DOMAIN,
        label.encode(),
        role.encode(),
        client_nonce,
        server_nonce,
        hashlib.sha256(server_key).digest(),
    )
    # Each with its length before it: no two lists of parts are written the same way.
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
