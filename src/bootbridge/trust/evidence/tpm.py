"""Evidence by a TPM 2.0 quote: which machine this is, and what was measured into its PCRs since it booted.

The quote's qualifying data is the root of a tree whose leaves are channel bindings (`statement_tree`), so it
is valid for the sessions that are in it, and one quote serves all peers that wait (`device_queue`). The
attestation key (AK) is trusted in one of two cases:

* enrolled: its identity is in the policy or the inventory. An operator must read it from the TPM itself
  (`TpmIssuer.identity`), not accept it from a machine that wants to be enrolled.
* endorsed: the TPM's endorsement certificate chains to a configured CA, and the TPM answers a challenge
  (TPM2_ActivateCredential) that it can decrypt only if it also holds this AK with these attributes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.x509.oid import ObjectIdentifier

from bootbridge.errors import OperatorError
from bootbridge.trust.certificate_chain import ChainRefused, parse_certificate, require_chain
from bootbridge.trust.evidence import (
    PROGRAM,
    AttestedPeer,
    EvidenceRefused,
    EvidenceUnavailable,
    Requester,
    require_binding,
    statement_tree,
)
from bootbridge.trust.evidence.device_queue import DeviceQueue
from bootbridge.trust.evidence.statement_tree import STATEMENTS_MAX, Inclusion, PathInvalid
from bootbridge.trust.fingerprint import fingerprint
from bootbridge.trust.identity import EvidenceKind, key_identity
from bootbridge.trust.measurement import LOCK_REGISTER, REGISTER_BYTES, REGISTERS, MeasurementPolicy
from bootbridge.trust.tpm.codec import MalformedTpmData
from bootbridge.trust.tpm.commands import RH_ENDORSEMENT
from bootbridge.trust.tpm.connection import TpmConnection
from bootbridge.trust.tpm.credential import EndorsementKey, make_credential
from bootbridge.trust.tpm.device import TpmDevice, TpmUnreachable
from bootbridge.trust.tpm.return_codes import TpmError
from bootbridge.trust.tpm.structures import ALG_SHA256, EcdsaSignature, ObjectAttribute, PublicArea, Quote
from bootbridge.trust.tpm.templates import AK_FORBIDDEN, AK_REQUIRED
from bootbridge.wire.proto import Message, MessageError, at

KIND = EvidenceKind.TPM
# The key in `AttestedPeer.facts` of the PCR that the node lock is measured into.
LOCK_FACT = f"pcr{LOCK_REGISTER}"

# Version of TpmEvidence. Format 1 had no tree: its quotes were for one session.
FORMAT = 2
# PCRs may change between TPM2_PCR_Read and TPM2_Quote; then both are repeated.
_QUOTE_ATTEMPTS = 5
_SECRET_BYTES = 32
_RSA_BITS_MIN = 2048
_EK_USAGE = ObjectIdentifier("2.23.133.8.1")  # tcg-kp-EKCertificate
_TPM_MANUFACTURER = ObjectIdentifier("2.23.133.2.1")  # tcg-at-tpmManufacturer

T = TypeVar("T")
Enrolled = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class PcrValue(Message):
    """A PCR of the SHA-256 bank."""

    index: int = at(1, 0)
    value: bytes = at(2, b"")


@dataclass(frozen=True, slots=True)
class TpmEvidence(Message):
    """A quote and what its verification needs; all but the certificate as the TPM encoded it."""

    attest: bytes = at(1, b"")
    signature: bytes = at(2, b"")
    attestation_key: bytes = at(3, b"")
    pcrs: tuple[PcrValue, ...] = at(4, ())
    endorsement_certificate: bytes = at(5, b"")
    format: int = at(6, 0)
    # Where the statement of this session is in the tree whose root was quoted.
    position: int = at(7, 0)
    path: tuple[bytes, ...] = at(8, ())

    def for_session(self, inclusion: Inclusion) -> TpmEvidence:
        return replace(self, position=inclusion.position, path=inclusion.path)


@dataclass(frozen=True, slots=True)
class TpmChallenge(Message):
    """A credential for TPM2_ActivateCredential; the answer is the decrypted secret."""

    credential: bytes = at(1, b"")
    encrypted_secret: bytes = at(2, b"")


class TpmIssuer:
    kind: str = KIND

    def __init__(
        self,
        device: TpmDevice,
        *,
        registers: Collection[int] = REGISTERS,
        show_endorsement_certificate: bool = True,
    ) -> None:
        """Presents these PCRs and the lock register, and the endorsement certificate only if wanted."""
        self._device = device
        self._registers = sorted({LOCK_REGISTER, *registers})
        self._show_endorsement_certificate = show_endorsement_certificate
        self._endorsement_certificate: bytes | None = None
        self._queue = DeviceQueue(self._sign, STATEMENTS_MAX)

    def __repr__(self) -> str:
        return f"<TpmIssuer {self._device.address}>"

    async def issue(self, binding: bytes, requester: Requester = PROGRAM) -> bytes:
        return await self._queue.sign(require_binding(binding), requester)

    async def answer(self, binding: bytes, challenge: bytes, requester: Requester = PROGRAM) -> bytes:
        require_binding(binding)
        try:
            parsed = TpmChallenge.decode(challenge)
        except MessageError as error:
            raise EvidenceRefused(f"malformed challenge: {error}") from error
        return await self._queue.answer(lambda: self._use(lambda tpm: self._activate(tpm, parsed)), requester)

    async def identity(self) -> str:
        """Returns the identity of the attestation key, for enrolment."""

        def read(tpm: TpmConnection) -> str:
            with tpm.attestation_key() as key:
                return key_identity(KIND, key.public.key())

        return await self._use(read)

    async def _sign(self, bindings: Sequence[bytes]) -> list[bytes]:
        root, inclusions = statement_tree.build(bindings)
        quoted = await self._use(lambda tpm: self._quote(tpm, root))
        return [quoted.for_session(each).encode() for each in inclusions]

    def _quote(self, tpm: TpmConnection, root: bytes) -> TpmEvidence:
        certificate = self._certificate(tpm) if self._show_endorsement_certificate else b""
        with tpm.attestation_key() as key:
            for _ in range(_QUOTE_ATTEMPTS):
                values = tpm.read_pcrs(self._registers)
                attest, signature = tpm.quote(key, root, sorted(values))
                if Quote.parse(attest).pcr_digest == _digest(values):
                    pcrs = tuple(PcrValue(index, value) for index, value in sorted(values.items()))
                    return TpmEvidence(attest, signature, key.public.encode(), pcrs, certificate, FORMAT)
        raise EvidenceUnavailable(
            f"PCRs changed during {_QUOTE_ATTEMPTS} quotes: another program extends them"
        )

    def _activate(self, tpm: TpmConnection, challenge: TpmChallenge) -> bytes:
        certificate = self._certificate(tpm)
        if not certificate:
            raise EvidenceUnavailable("challenge received, but this TPM has no endorsement certificate")
        try:
            elliptic = isinstance(_endorsement_key(parse_certificate(certificate)), ec.EllipticCurvePublicKey)
        except (ChainRefused, EvidenceRefused) as error:
            raise EvidenceUnavailable(f"endorsement certificate of this TPM: {error}") from error
        with tpm.attestation_key() as key, tpm.endorsement_key(elliptic=elliptic) as endorsement_key:
            return tpm.activate(key, endorsement_key, challenge.credential, challenge.encrypted_secret)

    def _certificate(self, tpm: TpmConnection) -> bytes:
        if self._endorsement_certificate is None:
            self._endorsement_certificate = _without_padding(tpm.endorsement_certificate())
        return self._endorsement_certificate

    async def _use(self, work: Callable[[TpmConnection], T]) -> T:
        try:
            return await self._device.use(work)
        except (TpmError, TpmUnreachable, MalformedTpmData) as error:
            raise EvidenceUnavailable(str(error)) from error


def _now() -> datetime:
    return datetime.now(UTC)


class TpmVerifier:
    """Holds the policy: trusted keys, endorsement CAs, expected measurements."""

    kind: str = KIND

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
                "any TPM would be trusted, even an emulator",
                subject=subject or "tpm policy",
                hint="set trustedKeys, endorsementCAs, or both",
            )
        self.measurements = measurements
        self.endorsement_authorities = tuple(endorsement_authorities)
        self.clock = clock
        self.is_enrolled: Enrolled = (
            trusted_keys if callable(trusted_keys) else set(trusted_keys).__contains__
        )

    def begin(self, binding: bytes) -> TpmVerification:
        return TpmVerification(self, require_binding(binding))


class TpmVerification:
    def __init__(self, verifier: TpmVerifier, binding: bytes) -> None:
        self._verifier = verifier
        self._binding = binding
        self._pending_challenge: tuple[bytes, AttestedPeer] | None = None

    def verify_evidence(self, evidence: bytes) -> AttestedPeer | bytes:
        try:
            presented = TpmEvidence.decode(evidence)
            if presented.format != FORMAT:
                version = presented.format or 1
                raise EvidenceRefused(
                    f"unsupported TPM evidence format {version} (supported: {FORMAT}; update the older side)"
                )
            public, quote = PublicArea.parse(presented.attestation_key), Quote.parse(presented.attest)
            key = _attestation_key(public)
            _require_signature(key, presented)
            # The qualified signer covers the whole public area: else the attributes could be forged.
            if not hmac.compare_digest(quote.qualified_signer, public.qualified_name(RH_ENDORSEMENT)):
                raise EvidenceRefused("qualified signer of the quote does not match the attestation key")
        except (MessageError, MalformedTpmData) as error:
            raise EvidenceRefused(f"malformed TPM evidence: {error}") from error
        self._require_statement(quote, Inclusion(presented.position, presented.path))
        values = self._verify_quote(quote, presented.pcrs)
        identity = key_identity(KIND, key)
        endorsement = None
        if not self._verifier.is_enrolled(identity):
            endorsement = self._endorsement_key(presented.endorsement_certificate, identity)
        attested = self._check_measurements(values, identity, fingerprint(endorsement) if endorsement else "")
        return attested if endorsement is None else self._challenge(endorsement, public, attested)

    def verify_answer(self, answer: bytes) -> AttestedPeer:
        if self._pending_challenge is None:
            raise EvidenceRefused("unexpected answer: no challenge was sent")
        (secret, attested), self._pending_challenge = self._pending_challenge, None
        if not hmac.compare_digest(secret, answer):
            raise EvidenceRefused(
                "wrong answer to the challenge: attestation key and endorsement key are not in the same TPM"
            )
        return attested

    def _require_statement(self, quote: Quote, inclusion: Inclusion) -> None:
        """The TPM has signed the root of a tree with this session's statement in it."""
        try:
            root = statement_tree.root_of(self._binding, inclusion)
        except PathInvalid as error:
            raise EvidenceRefused(f"malformed TPM evidence: {error}") from error
        if not hmac.compare_digest(quote.extra_data, root):
            raise EvidenceRefused("quote from another session: replayed or stale")

    def _verify_quote(self, quote: Quote, presented: Sequence[PcrValue]) -> dict[int, bytes]:
        """Returns the PCR values that the quote covers."""
        if len(quote.selections) != 1 or quote.selections[0].algorithm != ALG_SHA256:
            raise EvidenceRefused("quote of a PCR bank other than SHA-256")
        values = {pcr.index: pcr.value for pcr in presented}
        if tuple(sorted(values)) != quote.selections[0].indices or len(values) != len(presented):
            raise EvidenceRefused("presented PCRs differ from the quote's PCR selection")
        if any(len(value) != REGISTER_BYTES for value in values.values()):
            raise EvidenceRefused(f"invalid PCR value: not {REGISTER_BYTES} bytes")
        if not hmac.compare_digest(quote.pcr_digest, _digest(values)):
            raise EvidenceRefused("presented PCR values do not match the quote's digest")
        return values

    def _endorsement_key(self, certificate: bytes, identity: str) -> EndorsementKey:
        """Returns the key that must be in the same TPM as the attestation key."""
        authorities = self._verifier.endorsement_authorities
        if not authorities:
            raise EvidenceRefused(f"attestation key not enrolled: {identity}")
        if not certificate:
            raise EvidenceRefused(
                f"attestation key not enrolled: {identity}, and no endorsement certificate presented"
            )
        try:
            endorsement = parse_certificate(certificate)
            require_chain(endorsement, (), authorities, self._verifier.clock())
            return _endorsement_key(endorsement)
        except ChainRefused as error:
            raise EvidenceRefused(f"endorsement certificate: {error}") from error

    def _check_measurements(
        self, values: Mapping[int, bytes], identity: str, endorsement: str
    ) -> AttestedPeer:
        policy = self._verifier.measurements
        comparison = policy.compare(values)
        if comparison.refusals:
            raise EvidenceRefused("; ".join(comparison.refusals))
        reported = sorted({LOCK_REGISTER, *policy.expected} & values.keys())
        facts = {f"pcr{index}": values[index].hex() for index in reported}
        if endorsement:
            facts["endorsementKey"] = endorsement
        return AttestedPeer(KIND, identity, facts, comparison.warnings)

    def _challenge(self, endorsement: EndorsementKey, public: PublicArea, attested: AttestedPeer) -> bytes:
        secret = secrets.token_bytes(_SECRET_BYTES)
        try:
            credential = make_credential(endorsement, public.name, secret)
        except ValueError as error:
            raise EvidenceRefused(f"unsupported endorsement key: {error}") from error
        self._pending_challenge = secret, attested
        return TpmChallenge(credential.blob, credential.encrypted_secret).encode()


def _digest(values: Mapping[int, bytes]) -> bytes:
    """Returns TPMS_QUOTE_INFO.pcrDigest: the hash over the values in PCR order."""
    return hashlib.sha256(b"".join(value for _, value in sorted(values.items()))).digest()


def _attestation_key(public: PublicArea) -> ec.EllipticCurvePublicKey:
    if missing := AK_REQUIRED & ~public.attributes:
        raise EvidenceRefused(f"attestation key lacks attributes: {_attribute_names(missing)}")
    if wrong := AK_FORBIDDEN & public.attributes:
        raise EvidenceRefused(f"attestation key has forbidden attributes: {_attribute_names(wrong)}")
    key = public.key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not public.ecdsa_sha256:
        raise EvidenceRefused("attestation key is not ECDSA P-256 with SHA-256")
    return key


def _attribute_names(attributes: ObjectAttribute) -> str:
    return ", ".join(str(each.name).lower().replace("_", " ") for each in attributes)


def _require_signature(key: ec.EllipticCurvePublicKey, presented: TpmEvidence) -> None:
    signature = EcdsaSignature.parse(presented.signature)
    try:
        key.verify(
            encode_dss_signature(signature.r, signature.s), presented.attest, ec.ECDSA(hashes.SHA256())
        )
    except InvalidSignature:
        raise EvidenceRefused("invalid signature of the quote") from None


def _endorsement_key(certificate: x509.Certificate) -> EndorsementKey:
    """Returns the key; refuses other certificates that the same CA may have issued."""
    if not _is_for_endorsement(certificate):
        raise ChainRefused("not an endorsement key certificate")
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS_MIN:
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ChainRefused(f"unsupported key type (accepted: P-256, or RSA of at least {_RSA_BITS_MIN} bits)")


def _is_for_endorsement(certificate: x509.Certificate) -> bool:
    """By its extended key usage; older TPMs' certificates name the manufacturer instead. Never a CA."""
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
    return any(name.get_attributes_for_oid(_TPM_MANUFACTURER) for name in named)


def _without_padding(certificate: bytes) -> bytes:
    """Returns the first DER element: an NV index may be larger than its certificate."""
    if len(certificate) < 4 or certificate[:2] != b"\x30\x82":
        return certificate
    return certificate[: 4 + int.from_bytes(certificate[2:4], "big")]
