"""TLS contexts for attested connections: a server's has a key of its own, made for one connection.

Nothing here says who anybody is; that is the evidence's part. Measured on OpenSSL 3.0: 0.7 ms to read a key
and its certificate back in, 0.1 ms to make them, and 0.2 ms for a context, which is used again.
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
# Nobody looks at it: clocks may be wrong this early. The end is what RFC 5280 writes where there is none.
_EVER: Final = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
# As many as a busy listener has under way at once; what comes back beyond is let go.
_SPARE_CONTEXTS_MAX: Final = 64
_spare_contexts: Final[list[ssl.SSLContext]] = []


@dataclass(frozen=True)
class SessionKey:
    """A server's side of one connection."""

    context: ssl.SSLContext
    public: bytes = field(repr=False)  # DER SubjectPublicKeyInfo

    @classmethod
    def create(cls) -> SessionKey:
        """May be called from any thread: for most of its time it does not keep others from running."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        try:
            context = _spare_contexts.pop()
        except IndexError:
            context = _server_context()
        # OpenSSL finds its way through this form a little sooner than through PKCS #8.
        private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        _load(context, _certificate(key) + private)
        return cls(context, public)

    def spare_context(self) -> None:
        """Once the handshake is done: the session has a copy of the key, and the context takes the next."""
        if len(_spare_contexts) < _SPARE_CONTEXTS_MAX:
            _spare_contexts.append(self.context)


def _certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PEM. TLS needs a certificate to carry the key in; nobody looks at anything else in it."""
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_EVER[0])
        .not_valid_after(_EVER[1])
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


def _server_context() -> ssl.SSLContext:
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    # A resumed session would show no certificate, and so name no key that evidence could be bound to.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return context


@cache
def client_context() -> ssl.SSLContext:
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the key is named in the evidence, and trusted through it
    return context


def key_shown_by(certificate: bytes) -> bytes:
    """The DER SubjectPublicKeyInfo of a DER certificate; raises ValueError."""
    key = x509.load_der_x509_certificate(certificate).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _hardened(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """OpenSSL is reached through a path only; this one leads to memory that nobody else sees."""
    descriptor = os.memfd_create("session-key", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
