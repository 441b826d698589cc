"""Evidence by an X.509 certificate: the issuer signs the channel binding with the certificate's key.

For machines without a TPM that obtained a certificate some other way. It proves who the machine is, not
what runs on it; unlike a TPM's, the key can be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from bootbridge.errors import OperatorError
from bootbridge.trust.certificate_chain import (
    CERTIFICATE_PARSE_ERRORS,
    INTERMEDIATES_MAX,
    ChainRefused,
    parse_certificate,
    require_chain,
)
from bootbridge.trust.evidence import PROGRAM, AttestedPeer, EvidenceRefused, Requester, require_binding
from bootbridge.trust.fingerprint import fingerprint
from bootbridge.trust.identity import EvidenceKind, key_identity
from bootbridge.wire.proto import Message, MessageError, at

KIND = EvidenceKind.X509

# Domain separation: the same key may be used for TLS elsewhere.
_CONTEXT = b"bootbridge evidence x509\0"
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
_RSA_BITS_MIN = 2048
_KEYS = "P-256, Ed25519, or RSA of at least 2048 bits"

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


class Usage(StrEnum):
    """The extended key usage that the certificate must have."""

    CLIENT = "clientAuth"
    SERVER = "serverAuth"
    ANY = "any"


_USAGES = {Usage.CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH, Usage.SERVER: ExtendedKeyUsageOID.SERVER_AUTH}


@dataclass(frozen=True, slots=True)
class X509Evidence(Message):
    """The leaf first, then the intermediates, each DER."""

    certificates: tuple[bytes, ...] = at(1, ())
    signature: bytes = at(2, b"")


class X509Issuer:
    kind: str = KIND

    def __init__(self, certificates: Sequence[x509.Certificate], key: PrivateKey) -> None:
        self._certificates = tuple(each.public_bytes(Encoding.DER) for each in certificates)
        self._key = key
        self.identity = key_identity(KIND, key.public_key())

    def __repr__(self) -> str:
        return f"<X509Issuer {self.identity}>"

    @classmethod
    def from_pem(cls, certificates: bytes, key: bytes, subject: str = "x509") -> X509Issuer:
        try:
            chain = x509.load_pem_x509_certificates(certificates)
            public = chain[0].public_key()
        except CERTIFICATE_PARSE_ERRORS as error:
            raise OperatorError(
                f"invalid PEM certificate: {error}", subject=f"{subject}.certificate"
            ) from error
        try:
            private = load_pem_private_key(key, password=None)
        except CERTIFICATE_PARSE_ERRORS:
            # Without the library's text, which may quote the key.
            hint = "use an unencrypted PEM private key"
            raise OperatorError("invalid private key", subject=f"{subject}.key", hint=hint) from None
        if not isinstance(private, PrivateKey) or not _usable(private.public_key()):
            raise OperatorError("unsupported key type", subject=f"{subject}.key", hint=f"use {_KEYS}")
        if fingerprint(private.public_key()) != fingerprint(public):
            hint = "put the leaf first in the certificate file"
            raise OperatorError(
                "private key does not match the certificate", subject=f"{subject}.key", hint=hint
            )
        return cls(chain, private)

    async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
        return X509Evidence(
            self._certificates, _sign(self._key, _CONTEXT + require_binding(binding))
        ).encode()

    async def answer(self, binding: bytes, challenge: bytes, requester: Requester = PROGRAM) -> bytes:
        raise EvidenceRefused("unexpected challenge for x509 evidence")


def _now() -> datetime:
    return datetime.now(UTC)


class X509Verifier:
    """Accepts certificates that these authorities issued for this usage."""

    kind: str = KIND

    def __init__(
        self,
        authorities: Sequence[x509.Certificate],
        *,
        usage: Usage = Usage.CLIENT,
        clock: Callable[[], datetime] = _now,
        subject: str = "",
    ) -> None:
        if not authorities:
            raise OperatorError("no CA configured", subject=subject or "x509 policy", hint="set cas")
        self.authorities = tuple(authorities)
        self.usage = usage
        self.clock = clock

    def begin(self, binding: bytes) -> X509Verification:
        return X509Verification(self, require_binding(binding))


class X509Verification:
    def __init__(self, verifier: X509Verifier, binding: bytes) -> None:
        self._verifier = verifier
        self._binding = binding

    def verify_evidence(self, evidence: bytes) -> AttestedPeer:
        try:
            presented = X509Evidence.decode(evidence)
            leaf, *others = _certificates(presented.certificates)
            require_chain(leaf, others, self._verifier.authorities, self._verifier.clock())
            _require_usage(leaf, self._verifier.usage)
            facts = {"subject": leaf.subject.rfc4514_string(), "serial": f"{leaf.serial_number:x}"}
        except (MessageError, ChainRefused) as error:
            raise EvidenceRefused(f"x509 evidence: {error}") from error
        key = leaf.public_key()
        if not _signed(key, presented.signature, _CONTEXT + self._binding):
            raise EvidenceRefused("invalid signature: the evidence is forged or from another session")
        return AttestedPeer(KIND, key_identity(KIND, key), facts)

    def verify_answer(self, answer: bytes) -> AttestedPeer:
        raise EvidenceRefused("unexpected answer: no challenge was sent")


def _certificates(ders: Sequence[bytes]) -> list[x509.Certificate]:
    if not 1 <= len(ders) <= 1 + INTERMEDIATES_MAX:
        raise ChainRefused(f"{len(ders)} certificates presented (1 to {1 + INTERMEDIATES_MAX} are accepted)")
    return [parse_certificate(each) for each in ders]


def _require_usage(leaf: x509.Certificate, usage: Usage) -> None:
    if usage is Usage.ANY:
        return
    try:
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        usages = x509.ExtendedKeyUsage([])
    if _USAGES[usage] not in usages:
        raise ChainRefused(f"certificate without extended key usage {usage}")


def _usable(key: PublicKeyTypes) -> bool:
    if isinstance(key, ec.EllipticCurvePublicKey):
        return isinstance(key.curve, ec.SECP256R1)
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= _RSA_BITS_MIN
    return isinstance(key, ed25519.Ed25519PublicKey)


def _sign(key: PrivateKey, data: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, _PSS, hashes.SHA256())
    return key.sign(data)


def _signed(key: PublicKeyTypes, signature: bytes, data: bytes) -> bool:
    if not _usable(key):
        raise EvidenceRefused(f"unsupported key type in the certificate (accepted: {_KEYS})")
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, _PSS, hashes.SHA256())
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, data)
    except InvalidSignature:
        return False
    return True
