"""A kubelet's key and CSR for its serving certificate.

The CSR names the node only: the signer takes the addresses from the metadata, not from the requester.
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
from bootbridge.join_api.kubelet_certificate import COMMON_NAME_PREFIX, ORGANISATION

# X.520's limit of a common name, which OpenSSL and Go's signers enforce.
COMMON_NAME_CHARACTERS_MAX: Final = 64


@dataclass(frozen=True)
class KeyAndCsr:
    key: bytes = field(repr=False)  # PEM
    csr: bytes  # DER


def new_kubelet_csr(name: str) -> KeyAndCsr:
    """Generates a key; raises OperatorError for a name that does not fit into a certificate."""
    common_name = COMMON_NAME_PREFIX + node_name(name)
    if len(common_name) > COMMON_NAME_CHARACTERS_MAX:
        hint = f"at most {COMMON_NAME_CHARACTERS_MAX - len(COMMON_NAME_PREFIX)} characters"
        raise OperatorError(f"node name {name!r} too long for a certificate", hint=hint)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANISATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return KeyAndCsr(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        csr.public_bytes(serialization.Encoding.DER),
    )
