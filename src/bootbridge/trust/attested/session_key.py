"""TLS contexts for attested connections: the server uses a new key for each connection.

The certificates authenticate nothing; the evidence does. Measured on OpenSSL 3.0: 0.7 ms to load a key and
its certificate, 0.1 ms to generate them, and 0.2 ms to create a context, which is therefore reused.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

ALPN: Final = "bootbridge-attested/1"
_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bootbridge attested")])
# Always valid, as clocks may be wrong this early. The end is RFC 5280's value for "no expiry".
_VALIDITY: Final = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
# As many as a busy listener uses at once (AdmissionLimits.handshakes).
_SPARE_CONTEXTS_MAX: Final = 64
_spare_contexts: Final[list[ssl.SSLContext]] = []


@dataclass(frozen=True)
class SessionKey:
    """The server's TLS context and key for one connection."""

    context: ssl.SSLContext
    public: bytes = field(repr=False)  # DER SubjectPublicKeyInfo

    @classmethod
    def create(cls) -> SessionKey:
        """Thread-safe; releases the GIL for most of its time."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        try:
            context = _spare_contexts.pop()
        except IndexError:
            context = _server_context()
        # OpenSSL loads this format slightly faster than PKCS #8.
        private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        _load(context, _certificate(key) + private)
        return cls(context, public)

    def recycle_context(self) -> None:
        """Returns the context for reuse; call it after the handshake, when the session has its copy."""
        if len(_spare_contexts) < _SPARE_CONTEXTS_MAX:
            _spare_contexts.append(self.context)


def _certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns PEM. TLS transports the key in a certificate; the peer reads only the key."""
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_VALIDITY[0])
        .not_valid_after(_VALIDITY[1])
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


def _server_context() -> ssl.SSLContext:
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    # A resumed session has no certificate, so evidence could not be bound to its key.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return context


@cache
def client_context() -> ssl.SSLContext:
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the server's evidence vouches for its key
    return context


def public_key_of(certificate: bytes) -> bytes:
    """Returns the DER SubjectPublicKeyInfo of a DER certificate; raises ValueError."""
    key = x509.load_der_x509_certificate(certificate).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _hardened(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Through a memfd: `load_cert_chain` takes only paths, and the key must not reach a disk."""
    descriptor = os.memfd_create("session-key", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
