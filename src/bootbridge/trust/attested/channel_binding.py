"""The channel binding: 32 bytes that tie evidence to one TLS session, both nonces and the prover's role.

The server's key exists for one connection only, so a relay in the middle cannot present it. The role keeps a
peer from presenting a side's own evidence back to it.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

EndpointRole = Literal["client", "server"]
NONCE_BYTES: Final = 32
_DOMAIN: Final = b"bootbridge attested TLS v1"


def channel_binding(
    label: str, role: EndpointRole, client_nonce: bytes, server_nonce: bytes, server_key: bytes
) -> bytes:
    """Returns 32 bytes; ``role`` is the prover's, ``server_key`` the server's DER SubjectPublicKeyInfo."""
    parts = (
        _DOMAIN,
        label.encode(),
        role.encode(),
        client_nonce,
        server_nonce,
        hashlib.sha256(server_key).digest(),
    )
    # Length-prefixed, so that no two lists of parts encode to the same bytes.
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
