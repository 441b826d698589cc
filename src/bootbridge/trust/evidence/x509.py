"""Evidence by a certificate: whoever holds its key signs the statement.

For machines without a TPM that got a certificate some other way. It proves who the machine is, not
what runs on it; and unlike a TPM's, the key can be copied.
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
    INTERMEDIATES_MAX,
    UNREADABLE,
    ChainRefused,
    require_chain,
    shown_certificate,
)
from bootbridge.trust.evidence import Attested, EvidenceRefused
from bootbridge.trust.evidence.statement import checked
from bootbridge.trust.fingerprint import fingerprint
from bootbridge.wire.proto import Message, MessageError, at

KIND = "x509"

# The same key may be used for TLS elsewhere: what is signed there never starts like this.
_CONTEXT = b"bootbridge evidence x509\0"
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
_RSA_BITS_MIN = 2048
_KEYS = "P-256, Ed25519, or RSA of at least 2048 bits"

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


class Usage(StrEnum):
    """What the certificate must be meant for."""

    CLIENT = "clientAuth"
    SERVER = "serverAuth"
    ANY = "any"


_USAGES = {Usage.CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH, Usage.SERVER: ExtendedKeyUsageOID.SERVER_AUTH}


@dataclass(frozen=True, slots=True)
class X509Document(Message):
    """The leaf first, then what leads to an authority, each DER."""

    certificates: tuple[bytes, ...] = at(1, ())
    signature: bytes = at(2, b"")


class X509Issuer:
    """Proves by a certificate and its key."""

    kind = KIND

    def __init__(self, certificates: Sequence[x509.Certificate], key: PrivateKey) -> None:
        self._certificates = tuple(each.public_bytes(Encoding.DER) for each in certificates)
        self._key = key
        self.identity = fingerprint(key.public_key())

    def __repr__(self) -> str:
        return f"<X509Issuer {self.identity}>"

    @classmethod
    def from_pem(cls, certificates: bytes, key: bytes, subject: str = "x509") -> X509Issuer:
        try:
            chain = x509.load_pem_x509_certificates(certificates)
            public = chain[0].public_key()
        except UNREADABLE as error:
            raise OperatorError(f"no PEM certificate: {error}", subject=f"{subject}.certificate") from error
        try:
            private = load_pem_private_key(key, password=None)
        except UNREADABLE:
            # The library's text may quote what it read.
            hint = "an unencrypted PEM private key is needed"
            raise OperatorError("holds no usable key", subject=f"{subject}.key", hint=hint) from None
        if not isinstance(private, PrivateKey) or not _usable(private.public_key()):
            raise OperatorError("a key of this kind is not used", subject=f"{subject}.key", hint=_KEYS)
        if fingerprint(private.public_key()) != fingerprint(public):
            hint = "the leaf comes first in the certificate's file"
            raise OperatorError("is not the certificate's key", subject=f"{subject}.key", hint=hint)
        return cls(chain, private)

    async def issue(self, statement: bytes) -> bytes:
        return X509Document(self._certificates, _sign(self._key, _CONTEXT + checked(statement))).encode()

    async def answer(self, statement: bytes, challenge: bytes) -> bytes:
        raise EvidenceRefused("evidence by certificate knows no challenge")


def _now() -> datetime:
    return datetime.now(UTC)


class X509Verifier:
    """Trusts certificates that these authorities issued for this usage."""

    kind = KIND

    def __init__(
        self,
        authorities: Sequence[x509.Certificate],
        *,
        usage: Usage = Usage.CLIENT,
        clock: Callable[[], datetime] = _now,
        subject: str = "",
    ) -> None:
        if not authorities:
            raise OperatorError(
                "no authority is trusted", subject=subject or "the x509 policy", hint="give cas"
            )
        self.authorities = tuple(authorities)
        self.usage = usage
        self.clock = clock

    def begin(self, statement: bytes) -> X509Verification:
        return X509Verification(self, checked(statement))


class X509Verification:
    """One peer being verified."""

    def __init__(self, verifier: X509Verifier, statement: bytes) -> None:
        self._verifier = verifier
        self._statement = statement

    def document(self, document: bytes) -> Attested:
        try:
            shown = X509Document.decode(document)
            leaf, *others = _certificates(shown.certificates)
            require_chain(leaf, others, self._verifier.authorities, self._verifier.clock())
            _require_usage(leaf, self._verifier.usage)
            facts = {"subject": leaf.subject.rfc4514_string(), "serial": f"{leaf.serial_number:x}"}
        except (MessageError, ChainRefused) as error:
            raise EvidenceRefused(f"evidence by certificate: {error}") from error
        key = leaf.public_key()
        if not _signed(key, shown.signature, _CONTEXT + self._statement):
            text = (
                "the certificate's key did not sign this session: the evidence is stale, replayed or forged"
            )
            raise EvidenceRefused(text)
        return Attested(KIND, fingerprint(key), facts)

    def answered(self, answer: bytes) -> Attested:
        raise EvidenceRefused("an answer came where nothing was asked")


def _certificates(shown: Sequence[bytes]) -> list[x509.Certificate]:
    if not 1 <= len(shown) <= 1 + INTERMEDIATES_MAX:
        raise ChainRefused(f"{len(shown)} certificates were shown, 1 to {1 + INTERMEDIATES_MAX} are accepted")
    return [shown_certificate(each) for each in shown]


def _require_usage(leaf: x509.Certificate, usage: Usage) -> None:
    if usage is Usage.ANY:
        return
    try:
        meant_for = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        meant_for = x509.ExtendedKeyUsage([])
    if _USAGES[usage] not in meant_for:
        raise ChainRefused(f"the certificate is not meant for {usage}")


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
        raise EvidenceRefused(f"the certificate's key is not of a kind that is accepted: {_KEYS}")
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
