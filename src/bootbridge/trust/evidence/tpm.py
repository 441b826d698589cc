"""Evidence by a TPM 2.0 quote: which machine this is, and what was measured into it since it started.

The quote's extra data is the statement, so it is good for one session. The attestation key (AK) is trusted
in one of two ways:

* enrolled: its fingerprint is known beforehand. Enrolment names the key alone, so it has to be read from
  the chip itself (`TpmIssuer.identity`), not be taken from whoever asks to be enrolled.
* endorsed: the chip's endorsement certificate chains to a given authority, and the chip answers a
  challenge that it can read only if this very AK, with these very attributes, lives in it too.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.x509.oid import ObjectIdentifier

from bootbridge.errors import OperatorError
from bootbridge.trust.certificate_chain import ChainRefused, require_chain, shown_certificate
from bootbridge.trust.evidence import Attested, EvidenceRefused, EvidenceUnavailable
from bootbridge.trust.evidence.statement import checked
from bootbridge.trust.fingerprint import fingerprint
from bootbridge.trust.measurement import LOCK_REGISTER, REGISTER_BYTES, REGISTERS, MeasurementPolicy
from bootbridge.trust.tpm.chip import Chip
from bootbridge.trust.tpm.codec import MalformedTpmData
from bootbridge.trust.tpm.commands import ENDORSEMENT
from bootbridge.trust.tpm.credential import EndorsementKey, make_credential
from bootbridge.trust.tpm.device import Device, TpmUnreachable
from bootbridge.trust.tpm.return_codes import TpmError
from bootbridge.trust.tpm.structures import ALG_SHA256, Attribute, EcdsaSignature, Public, Quote
from bootbridge.trust.tpm.templates import AK_MUST, AK_MUST_NOT
from bootbridge.wire.proto import Message, MessageError, at

KIND = "tpm"
# Under which name `Attested.facts` tells what the node lock was measured into.
LOCK_FACT = f"pcr{LOCK_REGISTER}"

# PCRs may change between reading and quoting them; then both are done again.
_QUOTE_TRIES = 5
_SECRET_BYTES = 32
_RSA_BITS_MIN = 2048
_EK_USAGE = ObjectIdentifier("2.23.133.8.1")  # tcg-kp-EKCertificate
_TPM_MAKER = ObjectIdentifier("2.23.133.2.1")  # tcg-at-tpmManufacturer, which a TPM's certificate must name

T = TypeVar("T")
Enrolled = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class PcrValue(Message):
    """A register of the SHA-256 bank."""

    index: int = at(1, 0)
    value: bytes = at(2, b"")


@dataclass(frozen=True, slots=True)
class TpmDocument(Message):
    """A quote and what is needed to judge it; all but the certificate as the TPM wrote it."""

    attest: bytes = at(1, b"")
    signature: bytes = at(2, b"")
    attestation_key: bytes = at(3, b"")
    pcrs: tuple[PcrValue, ...] = at(4, ())
    endorsement_certificate: bytes = at(5, b"")


@dataclass(frozen=True, slots=True)
class TpmChallenge(Message):
    """A secret that only one chip can read; the answer is the secret."""

    credential: bytes = at(1, b"")
    encrypted_secret: bytes = at(2, b"")


class TpmIssuer:
    """Proves by the TPM of this machine."""

    kind = KIND

    def __init__(self, device: Device) -> None:
        self._device = device
        self._endorsement_certificate: bytes | None = None

    def __repr__(self) -> str:
        return f"<TpmIssuer {self._device.address}>"

    async def issue(self, statement: bytes) -> bytes:
        checked(statement)
        return await self._use(lambda chip: self._quote(chip, statement))

    async def answer(self, statement: bytes, challenge: bytes) -> bytes:
        checked(statement)
        try:
            asked = TpmChallenge.decode(challenge)
        except MessageError as error:
            raise EvidenceRefused(f"the challenge cannot be read: {error}") from error
        return await self._use(lambda chip: self._activate(chip, asked))

    async def identity(self) -> str:
        """The attestation key's fingerprint, for enrolment."""

        def read(chip: Chip) -> str:
            with chip.attestation_key() as key:
                return fingerprint(key.public.key())

        return await self._use(read)

    def _quote(self, chip: Chip, statement: bytes) -> bytes:
        certificate = self._certificate(chip)
        with chip.attestation_key() as key:
            for _ in range(_QUOTE_TRIES):
                values = chip.read_pcrs(REGISTERS)
                attest, signature = chip.quote(key, statement, sorted(values))
                if Quote.parse(attest).pcr_digest == _digest(values):
                    pcrs = tuple(PcrValue(index, value) for index, value in sorted(values.items()))
                    return TpmDocument(attest, signature, key.public.encode(), pcrs, certificate).encode()
        raise EvidenceUnavailable("PCRs change faster than they can be quoted: another program extends them")

    def _activate(self, chip: Chip, asked: TpmChallenge) -> bytes:
        certificate = self._certificate(chip)
        if not certificate:
            raise EvidenceUnavailable("this TPM holds no endorsement certificate, so it cannot be challenged")
        try:
            elliptic = isinstance(_endorsement_key(shown_certificate(certificate)), ec.EllipticCurvePublicKey)
        except (ChainRefused, EvidenceRefused) as error:
            raise EvidenceUnavailable(f"this TPM's endorsement certificate: {error}") from error
        with chip.attestation_key() as key, chip.endorsement_key(elliptic=elliptic) as endorsement_key:
            return chip.activate(key, endorsement_key, asked.credential, asked.encrypted_secret)

    def _certificate(self, chip: Chip) -> bytes:
        if self._endorsement_certificate is None:
            self._endorsement_certificate = _without_padding(chip.endorsement_certificate())
        return self._endorsement_certificate

    async def _use(self, work: Callable[[Chip], T]) -> T:
        try:
            return await self._device.use(work)
        except (TpmError, TpmUnreachable, MalformedTpmData) as error:
            raise EvidenceUnavailable(str(error)) from error


def _now() -> datetime:
    return datetime.now(UTC)


class TpmVerifier:
    """Holds the policy: which keys, which authorities, which measurements."""

    kind = KIND

    def __init__(
        self,
        measurements: MeasurementPolicy,
        *,
        trusted_keys: Collection[str] | Enrolled = (),
        endorsement_authorities: Sequence[x509.Certificate] = (),
        clock: Callable[[], datetime] = _now,
        subject: str = "",
    ) -> None:
        if not callable(trusted_keys) and not trusted_keys and not endorsement_authorities:
            raise OperatorError(
                "any TPM would be trusted, also one made of software",
                subject=subject or "the TPM policy",
                hint="give trustedKeys, endorsementCAs, or both",
            )
        self.measurements = measurements
        self.endorsement_authorities = tuple(endorsement_authorities)
        self.clock = clock
        self.is_enrolled: Enrolled = (
            trusted_keys if callable(trusted_keys) else set(trusted_keys).__contains__
        )

    def begin(self, statement: bytes) -> TpmVerification:
        return TpmVerification(self, checked(statement))


class TpmVerification:
    """One machine being verified."""

    def __init__(self, verifier: TpmVerifier, statement: bytes) -> None:
        self._verifier = verifier
        self._statement = statement
        self._awaited: tuple[bytes, Attested] | None = None

    def document(self, document: bytes) -> Attested | bytes:
        try:
            shown = TpmDocument.decode(document)
            public, quote = Public.parse(shown.attestation_key), Quote.parse(shown.attest)
            key = _attestation_key(public)
            _require_signature(key, shown)
            # The quote names the whole public area: without this, what the key may do could be made up.
            if not hmac.compare_digest(quote.signer, public.name_in(ENDORSEMENT)):
                raise EvidenceRefused(
                    "the quote was signed by a key with other attributes, or elsewhere made"
                )
        except (MessageError, MalformedTpmData) as error:
            raise EvidenceRefused(f"no TPM evidence: {error}") from error
        values = self._quoted(quote, shown.pcrs)
        identity = fingerprint(key)
        endorsement = None
        if not self._verifier.is_enrolled(identity):
            endorsement = self._endorsement(shown.endorsement_certificate, identity)
        attested = self._compared(values, identity, fingerprint(endorsement) if endorsement else "")
        return attested if endorsement is None else self._challenge(endorsement, public, attested)

    def answered(self, answer: bytes) -> Attested:
        if self._awaited is None:
            raise EvidenceRefused("an answer came where nothing was asked")
        (secret, attested), self._awaited = self._awaited, None
        if not hmac.compare_digest(secret, answer):
            raise EvidenceRefused("the attestation key is not in the TPM of the endorsement certificate")
        return attested

    def _quoted(self, quote: Quote, shown: Sequence[PcrValue]) -> dict[int, bytes]:
        """The registers' values, which the quote bears out."""
        if not hmac.compare_digest(quote.extra_data, self._statement):
            raise EvidenceRefused("the quote is stale or replayed: it was made for another session")
        if len(quote.selections) != 1 or quote.selections[0].algorithm != ALG_SHA256:
            raise EvidenceRefused("the quote is not over the SHA-256 bank alone; no other bank is accepted")
        values = {pcr.index: pcr.value for pcr in shown}
        if tuple(sorted(values)) != quote.selections[0].indices or len(values) != len(shown):
            raise EvidenceRefused("the PCR values shown are not those of the registers that were quoted")
        if any(len(value) != REGISTER_BYTES for value in values.values()):
            raise EvidenceRefused(f"a PCR value has not {REGISTER_BYTES} bytes")
        if not hmac.compare_digest(quote.pcr_digest, _digest(values)):
            raise EvidenceRefused("the PCR values shown are not those that the TPM signed")
        return values

    def _endorsement(self, certificate: bytes, identity: str) -> EndorsementKey:
        """The key that must share a chip with the attestation key."""
        authorities = self._verifier.endorsement_authorities
        if not authorities:
            raise EvidenceRefused(f"the attestation key {identity} is not enrolled")
        if not certificate:
            text = f"the attestation key {identity} is not enrolled, and no endorsement certificate is shown"
            raise EvidenceRefused(text)
        try:
            endorsement = shown_certificate(certificate)
            require_chain(endorsement, (), authorities, self._verifier.clock())
            return _endorsement_key(endorsement)
        except ChainRefused as error:
            raise EvidenceRefused(f"the TPM's endorsement certificate: {error}") from error

    def _compared(self, values: Mapping[int, bytes], identity: str, endorsement: str) -> Attested:
        policy = self._verifier.measurements
        comparison = policy.compare(values)
        if comparison.refusals:
            raise EvidenceRefused("; ".join(comparison.refusals))
        told = sorted({LOCK_REGISTER, *policy.expected} & values.keys())
        facts = {f"pcr{index}": values[index].hex() for index in told}
        if endorsement:
            facts["endorsementKey"] = endorsement
        return Attested(KIND, identity, facts, comparison.warnings)

    def _challenge(self, endorsement: EndorsementKey, public: Public, attested: Attested) -> bytes:
        secret = secrets.token_bytes(_SECRET_BYTES)
        try:
            credential = make_credential(endorsement, public.name, secret)
        except ValueError as error:
            raise EvidenceRefused(f"the TPM's endorsement key cannot be used: {error}") from error
        self._awaited = secret, attested
        return TpmChallenge(credential.blob, credential.encrypted_secret).encode()


def _digest(values: Mapping[int, bytes]) -> bytes:
    """What a quote says about PCRs: the hash over their values in order."""
    return hashlib.sha256(b"".join(value for _, value in sorted(values.items()))).digest()


def _attestation_key(public: Public) -> ec.EllipticCurvePublicKey:
    if missing := AK_MUST & ~public.attributes:
        raise EvidenceRefused(f"the attestation key is not {_attribute_names(missing)}: it may sign anything")
    if wrong := AK_MUST_NOT & public.attributes:
        raise EvidenceRefused(f"the attestation key is for {_attribute_names(wrong)} too")
    key = public.key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not public.ecdsa_sha256:
        raise EvidenceRefused("the attestation key does not sign by ECDSA on P-256 with SHA-256")
    return key


def _attribute_names(attributes: Attribute) -> str:
    return ", ".join(str(each.name).lower().replace("_", " ") for each in attributes)


def _require_signature(key: ec.EllipticCurvePublicKey, shown: TpmDocument) -> None:
    signature = EcdsaSignature.parse(shown.signature)
    try:
        key.verify(encode_dss_signature(signature.r, signature.s), shown.attest, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise EvidenceRefused("the quote was not signed by the attestation key shown with it") from None


def _endorsement_key(certificate: x509.Certificate) -> EndorsementKey:
    """The key, if this is a certificate for endorsement and not just any that the authority issued."""
    if not _is_for_endorsement(certificate):
        raise ChainRefused("it is not meant for endorsement keys")
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS_MIN:
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ChainRefused(f"its key is neither RSA of at least {_RSA_BITS_MIN} bits nor on P-256")


def _is_for_endorsement(certificate: x509.Certificate) -> bool:
    """By its usage; where it names none, as on older chips, by the chip's maker. Never an authority's."""
    extensions = {type(each.value): each.value for each in certificate.extensions}
    constraints = extensions.get(x509.BasicConstraints)
    if isinstance(constraints, x509.BasicConstraints) and constraints.ca:
        return False
    usage = extensions.get(x509.ExtendedKeyUsage)
    if isinstance(usage, x509.ExtendedKeyUsage):
        return _EK_USAGE in usage
    names = extensions.get(x509.SubjectAlternativeName)
    if not isinstance(names, x509.SubjectAlternativeName):
        return False
    named = names.get_values_for_type(x509.DirectoryName)
    return any(name.get_attributes_for_oid(_TPM_MAKER) for name in named)


def _without_padding(certificate: bytes) -> bytes:
    """The DER element at the front: an NV index may be larger than what was put into it."""
    if len(certificate) < 4 or certificate[:2] != b"\x30\x82":
        return certificate
    return certificate[: 4 + int.from_bytes(certificate[2:4], "big")]
