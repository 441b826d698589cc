"""TPM quotes that a verifier accepts and refuses.

The quotes come from a key in this process, which can lie; test_evidence_tpm_chip.py has real ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.errors import OperatorError
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused, statement_tree
from bootbridge.trust.evidence.tpm import PcrValue, TpmEvidence, TpmIssuer, TpmVerifier
from bootbridge.trust.measurement import Expectation, MeasurementPolicy
from bootbridge.trust.tpm.device import TpmDevice
from bootbridge.trust.tpm.structures import ALG_SHA384, ATTEST_QUOTE, ObjectAttribute
from tests.support.software_tpm import EndorsementPrivateKey, SoftwareTpm

BINDING = bytes(range(32))
OTHER_BINDING = bytes(range(1, 33))
ZERO = "00" * 32
LOCK_MUST_BE_ZERO = MeasurementPolicy.of({"15": ZERO})
NOW = datetime(2026, 11, 16, tzinfo=UTC)
TPM_MAKER = ObjectIdentifier("2.23.133.2.1")
EK_USAGE = ObjectIdentifier("2.23.133.8.1")

CHIP_KEY = ec.generate_private_key(ec.SECP256R1())
AUTHORITY_KEY = ec.generate_private_key(ec.SECP256R1())


def enrolled(*chips: SoftwareTpm, measurements: MeasurementPolicy = LOCK_MUST_BE_ZERO) -> TpmVerifier:
    return TpmVerifier(measurements, trusted_keys={chip.identity for chip in chips})


def verify(verifier: TpmVerifier, document: TpmEvidence, binding: bytes = BINDING) -> AttestedPeer:
    found = verifier.begin(binding).verify_evidence(document.encode())
    assert isinstance(found, AttestedPeer)
    return found


def refusal(verifier: TpmVerifier, document: TpmEvidence | bytes, binding: bytes = BINDING) -> str:
    encoded = document if isinstance(document, bytes) else document.encode()
    with pytest.raises(EvidenceRefused) as raised:
        verifier.begin(binding).verify_evidence(encoded)
    return str(raised.value)


def certificate(
    name: str,
    key: EndorsementPrivateKey,
    *,
    issuer: str = "chips",
    signer: EndorsementPrivateKey = AUTHORITY_KEY,
    authority: bool = False,
    usage: ObjectIdentifier | None = EK_USAGE,
    maker: ObjectIdentifier | None = None,
    ends: datetime = NOW + timedelta(days=1),
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW - timedelta(days=2))
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if maker is not None:
        chip = x509.DirectoryName(x509.Name([x509.NameAttribute(maker, "id:00001014")]))
        builder = builder.add_extension(x509.SubjectAlternativeName([chip]), critical=False)
    return builder.sign(signer, hashes.SHA256())


AUTHORITY = certificate("chips", AUTHORITY_KEY, authority=True, usage=None)


def endorsed(*authorities: x509.Certificate) -> TpmVerifier:
    return TpmVerifier(
        LOCK_MUST_BE_ZERO, endorsement_authorities=authorities or (AUTHORITY,), clock=lambda: NOW
    )


def chip_with_certificate(key: EndorsementPrivateKey = CHIP_KEY) -> SoftwareTpm:
    return SoftwareTpm(endorsement_key=key, endorsement_certificate=certificate("chip", key))


def test_a_valid_quote_gives_the_key_and_its_measurements() -> None:
    chip = SoftwareTpm()
    found = verify(enrolled(chip), chip.document(BINDING))
    assert found == AttestedPeer("tpm", chip.identity, {"pcr15": ZERO})


def test_an_inventory_may_enrol_further_keys() -> None:
    chip, other = SoftwareTpm(), SoftwareTpm()
    verifier = TpmVerifier(LOCK_MUST_BE_ZERO, trusted_keys=lambda identity: identity == chip.identity)
    assert verify(verifier, chip.document(BINDING)).identity == chip.identity
    assert "not enrolled" in refusal(verifier, other.document(BINDING))


def shared(chip: SoftwareTpm, *bindings: bytes) -> list[TpmEvidence]:
    """Returns the evidence of sessions that share one quote."""
    root, inclusions = statement_tree.build(bindings)
    attest = chip.attest(root)
    alone = replace(chip.document(BINDING), attest=attest, signature=chip.sign(attest))
    return [alone.for_session(each) for each in inclusions]


def test_sessions_that_share_a_quote_are_each_accepted_and_for_themselves_only() -> None:
    chip = SoftwareTpm()
    for document, binding in zip(shared(chip, BINDING, OTHER_BINDING), (BINDING, OTHER_BINDING), strict=True):
        assert verify(enrolled(chip), document, binding).identity == chip.identity
        other = OTHER_BINDING if binding == BINDING else BINDING
        assert "replayed or stale" in refusal(enrolled(chip), document, other)
        assert "replayed or stale" in refusal(enrolled(chip), document, bytes(32))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"position": 1}, "replayed or stale"),
        ({"position": 2}, "position 2 in a tree of 2 leaves"),
        ({"path": ()}, "replayed or stale"),
        ({"path": (bytes(31),)}, "not 32 bytes"),
        ({"path": (bytes(32),) * 7}, "path of 7 hashes"),
        ({"format": 0}, "unsupported TPM evidence format 1 (supported: 2; update the older side)"),
        ({"format": 3}, "unsupported TPM evidence format 3"),
    ],
)
def test_evidence_with_another_place_or_format_is_refused(changes: dict[str, Any], problem: str) -> None:
    chip = SoftwareTpm()
    assert problem in refusal(enrolled(chip), replace(shared(chip, BINDING, OTHER_BINDING)[0], **changes))


def test_a_quote_over_the_channel_binding_itself_is_refused() -> None:
    """As earlier versions made it: the qualifying data must be the root of a tree."""
    chip = SoftwareTpm()
    attest = chip.attest(BINDING)
    document = replace(chip.document(BINDING), attest=attest, signature=chip.sign(attest))
    assert "replayed or stale" in refusal(enrolled(chip), document)


def test_a_quote_of_another_session_is_refused_as_stale_or_replayed() -> None:
    chip = SoftwareTpm()
    text = refusal(enrolled(chip), chip.document(BINDING), OTHER_BINDING)
    assert "replayed or stale" in text


@pytest.mark.parametrize("binding", [b"", bytes(31), bytes(33)])
async def test_a_channel_binding_of_the_wrong_length_is_refused_on_both_sides(binding: bytes) -> None:
    """Evidence over an empty nonce could be replayed in any session."""
    with pytest.raises(EvidenceRefused, match="channel binding of"):
        enrolled(SoftwareTpm()).begin(binding)
    issuer = TpmIssuer(TpmDevice("/dev/tpmrm0"))
    with pytest.raises(EvidenceRefused, match="channel binding of"):
        await issuer.issue(binding)
    with pytest.raises(EvidenceRefused, match="channel binding of"):
        await issuer.answer(binding, b"")


def test_an_enforced_measurement_that_differs_is_refused_with_both_values() -> None:
    chip = SoftwareTpm()
    chip.measure(15, b"cluster")
    text = refusal(enrolled(chip), chip.document(BINDING))
    assert text == f"PCR 15 is {chip.pcrs[15].hex()}, expected {ZERO}"


def test_a_warn_only_measurement_is_accepted_with_a_warning() -> None:
    chip = SoftwareTpm()
    chip.measure(4, b"another kernel")
    policy = MeasurementPolicy.of({"4": Expectation(ZERO, warn_only=True), "15": ZERO})
    found = verify(enrolled(chip, measurements=policy), chip.document(BINDING))
    assert found.warnings == (f"PCR 4 is {chip.pcrs[4].hex()}, expected {ZERO}",)
    assert found.facts == {"pcr4": chip.pcrs[4].hex(), "pcr15": ZERO}


def test_a_quote_without_an_enforced_register_is_refused() -> None:
    chip = SoftwareTpm(pcrs={0: bytes(32)})
    assert "PCR 15 missing" in refusal(enrolled(chip), chip.document(BINDING))


def test_values_other_than_the_signed_ones_are_refused() -> None:
    chip = SoftwareTpm()
    chip.measure(15, b"cluster")
    document = replace(chip.document(BINDING), pcrs=tuple(PcrValue(n, bytes(32)) for n in range(24)))
    assert "PCR values do not match the quote's digest" in refusal(enrolled(chip), document)


@pytest.mark.parametrize(
    "change",
    [
        lambda pcrs: pcrs[:-1],
        lambda pcrs: (),
        lambda pcrs: (*pcrs, PcrValue(24, bytes(32))),
        lambda pcrs: (*pcrs, pcrs[-1]),
        lambda pcrs: (*pcrs[:-1], PcrValue(2**40, bytes(32))),
    ],
    ids=["one missing", "none", "one more", "one twice", "another register"],
)
def test_values_of_other_registers_than_the_quoted_ones_are_refused(
    change: Callable[[tuple[PcrValue, ...]], tuple[PcrValue, ...]],
) -> None:
    chip = SoftwareTpm()
    document = chip.document(BINDING)
    text = refusal(enrolled(chip), replace(document, pcrs=change(document.pcrs)))
    assert "differ from the quote's PCR selection" in text


def test_bytes_shifted_between_registers_are_refused() -> None:
    """The TPM signs the concatenation of the values, so their lengths must be fixed."""
    chip = SoftwareTpm()
    pcrs = (PcrValue(0, bytes(31)), PcrValue(1, bytes(33)), *chip.document(BINDING).pcrs[2:])
    text = refusal(enrolled(chip), replace(chip.document(BINDING), pcrs=pcrs))
    assert "not 32 bytes" in text


def test_a_quote_over_another_bank_is_refused() -> None:
    chip = SoftwareTpm(bank=ALG_SHA384)
    assert "bank other than SHA-256" in refusal(enrolled(chip), chip.document(BINDING))


def test_the_refusal_names_the_fingerprint_of_an_unenrolled_key() -> None:
    chip = SoftwareTpm()
    text = refusal(enrolled(SoftwareTpm()), chip.document(BINDING))
    assert text == f"attestation key not enrolled: {chip.identity}"


def test_a_quote_signed_by_another_key_is_refused() -> None:
    chip, forger = SoftwareTpm(), SoftwareTpm()
    document = chip.document(BINDING)
    forged = replace(document, signature=forger.sign(document.attest))
    assert "invalid signature of the quote" in refusal(enrolled(chip), forged)


def test_a_quote_changed_after_signing_is_refused() -> None:
    chip = SoftwareTpm()
    old, new = chip.document(OTHER_BINDING), chip.document(BINDING)
    assert "invalid signature of the quote" in refusal(enrolled(chip), replace(old, attest=new.attest))


@pytest.mark.parametrize(
    ("attribute", "name"),
    [
        (ObjectAttribute.RESTRICTED, "restricted"),
        (ObjectAttribute.SIGN, "sign"),
        (ObjectAttribute.FIXED_TPM, "fixed tpm"),
        (ObjectAttribute.FIXED_PARENT, "fixed parent"),
        (ObjectAttribute.SENSITIVE_DATA_ORIGIN, "sensitive data origin"),
    ],
)
def test_an_attestation_key_without_required_attributes_is_refused(
    attribute: ObjectAttribute, name: str
) -> None:
    """Even if it is enrolled."""
    chip = SoftwareTpm()
    chip.attributes &= ~attribute
    assert f"lacks attributes: {name}" in refusal(enrolled(chip), chip.document(BINDING))


def test_a_key_that_can_also_decrypt_is_refused() -> None:
    chip = SoftwareTpm()
    chip.attributes |= ObjectAttribute.DECRYPT
    assert "decrypt" in refusal(enrolled(chip), chip.document(BINDING))


def test_a_structure_that_the_tpm_did_not_generate_is_refused() -> None:
    chip = SoftwareTpm(magic=0xFF544346)
    assert "not generated by a TPM" in refusal(enrolled(chip), chip.document(BINDING))


def test_another_attestation_type_is_refused() -> None:
    """The certification of a key contains the channel binding as well."""
    chip = SoftwareTpm(attest_type=ATTEST_QUOTE - 1)
    assert "attestation type 0x8017" in refusal(enrolled(chip), chip.document(BINDING))


def test_a_verifier_without_trusted_keys_and_cas_is_an_error() -> None:
    with pytest.raises(OperatorError, match="trustedKeys, endorsementCAs"):
        TpmVerifier(LOCK_MUST_BE_ZERO)


def test_an_answer_without_a_challenge_is_refused() -> None:
    with pytest.raises(EvidenceRefused, match="no challenge was sent"):
        enrolled(SoftwareTpm()).begin(BINDING).verify_answer(b"")


@pytest.mark.parametrize(
    "key",
    [CHIP_KEY, rsa.generate_private_key(public_exponent=65537, key_size=2048)],
    ids=["P-256", "RSA"],
)
async def test_an_endorsed_tpm_answers_the_challenge(key: EndorsementPrivateKey) -> None:
    chip = chip_with_certificate(key)
    verification = endorsed().begin(BINDING)
    challenge = verification.verify_evidence(await chip.issue(BINDING))
    assert isinstance(challenge, bytes)
    found = verification.verify_answer(await chip.answer(BINDING, challenge))
    assert found.identity == chip.identity
    assert found.facts.keys() == {"pcr15", "endorsementKey"}


async def test_an_enrolled_key_needs_no_challenge() -> None:
    chip = chip_with_certificate()
    verifier = TpmVerifier(
        LOCK_MUST_BE_ZERO, trusted_keys=[chip.identity], endorsement_authorities=[AUTHORITY]
    )
    assert verify(verifier, chip.document(BINDING)).identity == chip.identity


@pytest.mark.parametrize(
    "answer", [b"", bytes(32), os.urandom(32), bytes(64)], ids=["none", "zeros", "guessed", "too long"]
)
def test_a_challenge_can_be_answered_once(answer: bytes) -> None:
    chip = chip_with_certificate()
    verification = endorsed().begin(BINDING)
    verification.verify_evidence(chip.document(BINDING).encode())
    with pytest.raises(EvidenceRefused, match="are not in the same TPM"):
        verification.verify_answer(answer)
    with pytest.raises(EvidenceRefused, match="no challenge was sent"):
        verification.verify_answer(answer)


async def test_a_challenge_for_another_key_or_tpm_fails() -> None:
    """A key outside the TPM cannot use the certificate of a genuine TPM."""
    chip = chip_with_certificate()
    forger = SoftwareTpm(endorsement_key=CHIP_KEY, endorsement_certificate=chip.endorsement_certificate)
    challenge = endorsed().begin(BINDING).verify_evidence(forger.document(BINDING).encode())
    assert isinstance(challenge, bytes)
    with pytest.raises(AssertionError, match="for another key"):
        await chip.answer(BINDING, challenge)


async def test_a_challenge_is_for_one_set_of_attributes() -> None:
    """An unrestricted key of the TPM cannot be presented as a restricted one."""
    chip = chip_with_certificate()
    challenge = endorsed().begin(BINDING).verify_evidence(chip.document(BINDING).encode())
    assert isinstance(challenge, bytes)
    chip.attributes &= ~ObjectAttribute.RESTRICTED
    with pytest.raises(AssertionError, match="for another key"):
        await chip.answer(BINDING, challenge)


def test_measurements_are_checked_before_the_challenge() -> None:
    chip = chip_with_certificate()
    chip.measure(15, b"cluster")
    assert "PCR 15 is" in refusal(endorsed(), chip.document(BINDING))


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (None, "no endorsement certificate presented"),
        (certificate("chip", CHIP_KEY, ends=NOW - timedelta(hours=1)), "expired or not yet valid"),
        (
            certificate("chip", CHIP_KEY, usage=ExtendedKeyUsageOID.CLIENT_AUTH),
            "not an endorsement key",
        ),
        (certificate("chip", CHIP_KEY, usage=None), "not an endorsement key"),
        (
            certificate("chip", CHIP_KEY, usage=None, maker=NameOID.COMMON_NAME),
            "not an endorsement key",
        ),
        (certificate("chip", CHIP_KEY, authority=True), "not an endorsement key"),
        (certificate("chip", CHIP_KEY, signer=CHIP_KEY), "was not issued by a trusted CA"),
        (certificate("chip", CHIP_KEY, issuer="others"), "was not issued by a trusted CA"),
    ],
    ids=[
        *("none", "expired", "another purpose", "no purpose", "no purpose, of no chip", "an authority"),
        *("forged", "another issuer"),
    ],
)
def test_an_invalid_endorsement_certificate_is_refused(shown: x509.Certificate | None, message: str) -> None:
    chip = SoftwareTpm(endorsement_key=CHIP_KEY, endorsement_certificate=shown)
    assert message in refusal(endorsed(), chip.document(BINDING))


def test_an_endorsement_certificate_without_usage_is_accepted_by_its_manufacturer() -> None:
    shown = certificate("chip", CHIP_KEY, usage=None, maker=TPM_MAKER)
    chip = SoftwareTpm(endorsement_key=CHIP_KEY, endorsement_certificate=shown)
    assert isinstance(endorsed().begin(BINDING).verify_evidence(chip.document(BINDING).encode()), bytes)


def test_a_malformed_endorsement_certificate_is_refused() -> None:
    document = replace(SoftwareTpm().document(BINDING), endorsement_certificate=b"\x30\x82\x00\x01x")
    assert "malformed certificate" in refusal(endorsed(), document)


def test_an_unsupported_endorsement_key_is_refused() -> None:
    unusual = ec.generate_private_key(ec.SECP384R1())
    chip = SoftwareTpm(endorsement_key=unusual, endorsement_certificate=certificate("chip", unusual))
    assert "unsupported key type" in refusal(endorsed(), chip.document(BINDING))


def test_without_a_trusted_ca_an_endorsement_certificate_is_refused() -> None:
    chip = chip_with_certificate()
    assert "not enrolled" in refusal(enrolled(SoftwareTpm()), chip.document(BINDING))


CHIP = chip_with_certificate()
VERIFIERS = (enrolled(CHIP), endorsed())
TRUE_DOCUMENT = CHIP.document(BINDING)


@settings(max_examples=50)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused(document: bytes) -> None:
    for verifier in VERIFIERS:
        with pytest.raises(EvidenceRefused):
            verifier.begin(BINDING).verify_evidence(document)


@settings(max_examples=50)
@given(st.data())
def test_a_quote_with_any_bit_changed_is_refused(data: st.DataObject) -> None:
    """In the attested bytes, the signature or the key."""
    name = data.draw(st.sampled_from(["attest", "signature", "attestation_key"]))
    part = bytearray(getattr(TRUE_DOCUMENT, name))
    part[data.draw(st.integers(0, len(part) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert refusal(VERIFIERS[0], replace(TRUE_DOCUMENT, **{name: bytes(part)}))


@settings(max_examples=50)
@given(st.binary(max_size=1200), st.integers(0, 4000))
def test_a_damaged_endorsement_certificate_gives_a_refusal_or_a_challenge(noise: bytes, at: int) -> None:
    damaged = bytearray(TRUE_DOCUMENT.endorsement_certificate)
    at %= len(damaged)
    damaged[at : at + len(noise)] = noise
    document = replace(TRUE_DOCUMENT, endorsement_certificate=bytes(damaged)).encode()
    try:
        assert isinstance(VERIFIERS[1].begin(BINDING).verify_evidence(document), bytes)
    except EvidenceRefused:
        pass
