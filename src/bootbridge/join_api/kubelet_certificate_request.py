"""A kubelet's request for its serving certificate: a fresh key, and nothing but its name.

Addresses are not asked for: whoever signs takes them from the metadata, not from the one who asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import node_name

ORGANISATION: Final = "system:nodes"
COMMON_NAME_PREFIX: Final = "system:node:"
# X.520's limit on a common name, which OpenSSL and Go's signers keep to.
COMMON_NAME_CHARACTERS_MAX: Final = 64


@dataclass(frozen=True)
class CertificateRequest:
    """A fresh key (PEM) and the request (DER) that is signed with it."""

    key: bytes = field(repr=False)
    request: bytes


def new_request(name: str) -> CertificateRequest:
    """The key in PEM, the request in DER."""
    common_name = COMMON_NAME_PREFIX + node_name(name)
    if len(common_name) > COMMON_NAME_CHARACTERS_MAX:
        hint = f"at most {COMMON_NAME_CHARACTERS_MAX - len(COMMON_NAME_PREFIX)} characters fit"
        raise OperatorError(f"{name!r} is too long for a node's certificate", hint=hint)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANISATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return CertificateRequest(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        request.public_bytes(serialization.Encoding.DER),
    )
