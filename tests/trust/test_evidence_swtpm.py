"""Quotes of a real TPM 2.0 (swtpm), checked by our verifier and by tpm2-tools."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID, ObjectIdentifier

from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused, EvidenceUnavailable, statement_tree
from bootbridge.trust.evidence.statement_tree import Inclusion
from bootbridge.trust.evidence.tpm import FORMAT, TpmEvidence, TpmIssuer, TpmVerifier
from bootbridge.trust.measurement import MeasurementPolicy, after_event
from bootbridge.trust.tpm import commands
from bootbridge.trust.tpm.connection import TpmConnection
from bootbridge.trust.tpm.device import TpmDevice
from bootbridge.trust.tpm.register import TpmRegister
from bootbridge.trust.tpm.structures import ALG_SHA256, ALG_SHA384, ObjectAttribute, PublicArea
from bootbridge.trust.tpm.templates import AK, EK_ECC_CERTIFICATE
from tests.support.gated_tpm import GatedTpm
from tests.support.swtpm import NewChip, Swtpm

pytest_plugins = ["tests.support.swtpm"]
pytestmark = pytest.mark.slow

BINDING = bytes(range(32))
OTHER_BINDING = bytes(range(1, 33))
ZERO = "00" * 32
LOCK_MUST_BE_ZERO = MeasurementPolicy.of({"15": ZERO})
CLUSTER_ID = bytes.fromhex("128c164378fe8767f998fbdfe4b4d6463ec5ae1b664ea5999bc27417607ae9b6")
AFTER_CLUSTER_ID = "23400370357e846478cce7cc0c76cdfe4da077cc57b36dee0f665ede2c8b3f2f"
ALG_SHA1 = 0x0004


async def enrolled(chip: Swtpm) -> TpmVerifier:
    return TpmVerifier(LOCK_MUST_BE_ZERO, trusted_keys=[await TpmIssuer(chip.device).identity()])


async def evidence(chip: Swtpm, binding: bytes = BINDING) -> bytes:
    return await TpmIssuer(chip.device).issue(binding)


def refusal(verifier: TpmVerifier, document: bytes, binding: bytes = BINDING) -> str:
    with pytest.raises(EvidenceRefused) as raised:
        verifier.begin(binding).verify_evidence(document)
    return str(raised.value)


def loaded(chip: TpmConnection) -> list[int]:
    firsts = (commands.TRANSIENT_FIRST, commands.LOADED_SESSION_FIRST)
    found = [commands.parse_handles(chip.run(commands.get_handles(first))) for first in firsts]
    return [handle for handles in found for handle in handles]


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "unix"])
async def test_a_real_quote_is_accepted(new_chip: NewChip, tcp: bool) -> None:
    chip = new_chip(tcp=tcp)
    found = (await enrolled(chip)).begin(BINDING).verify_evidence(await evidence(chip))
    assert found == AttestedPeer("tpm", await TpmIssuer(chip.device).identity(), {"pcr15": ZERO})


async def test_a_stale_or_replayed_quote_is_refused(new_chip: NewChip) -> None:
    chip = new_chip()
    text = refusal(await enrolled(chip), await evidence(chip), OTHER_BINDING)
    assert "replayed or stale" in text


async def test_the_lock_is_in_the_quote_until_the_next_boot(new_chip: NewChip) -> None:
    """A reboot clears the register and keeps the identity of the machine."""
    chip = new_chip()
    verifier = await enrolled(chip)
    register = TpmRegister(chip.device)
    assert await register.read() == bytes(32)
    await register.extend(CLUSTER_ID)
    assert (await register.read()).hex() == AFTER_CLUSTER_ID
    assert refusal(verifier, await evidence(chip)) == f"PCR 15 is {AFTER_CLUSTER_ID}, expected {ZERO}"

    chip.power_cycle()
    assert isinstance(verifier.begin(BINDING).verify_evidence(await evidence(chip)), AttestedPeer)


async def test_a_measurement_changes_every_bank(new_chip: NewChip) -> None:
    """Otherwise a verifier could be shown an unchanged bank."""
    chip = new_chip()
    described = await chip.device.use(lambda chip: chip.describe())
    banks = [bank.algorithm for bank in described.banks]
    assert {ALG_SHA1, ALG_SHA256, ALG_SHA384} <= set(banks)
    await TpmRegister(chip.device).extend(CLUSTER_ID)
    for bank in banks:
        values = await chip.device.use(lambda chip, bank=bank: chip.read_pcrs([14, 15], bank))
        assert not any(values[14])
        assert any(values[15])
    values = await chip.device.use(lambda chip: chip.read_pcrs([15], ALG_SHA384))
    assert values[15] == after_event(bytes(48), CLUSTER_ID)


async def test_another_tpm_has_another_identity(new_chip: NewChip) -> None:
    chip, other = new_chip(), new_chip()
    assert "not enrolled" in refusal(await enrolled(chip), await evidence(other))


async def test_the_identity_survives_tpm2_clear(new_chip: NewChip) -> None:
    chip = new_chip()
    before = await TpmIssuer(chip.device).identity()
    chip.tool("tpm2_clear", "-c", "platform")
    assert await TpmIssuer(chip.device).identity() == before


async def test_a_quote_by_a_key_that_may_sign_anything_is_refused(new_chip: NewChip) -> None:
    """Such a key could sign a forged quote."""
    chip = new_chip()
    unrestricted = replace(AK, attributes=AK.attributes & ~ObjectAttribute.RESTRICTED)

    def forge(chip: TpmConnection) -> TpmEvidence:
        response = chip.run(commands.create_primary(commands.RH_ENDORSEMENT, unrestricted))
        public = commands.parse_public(response)
        attest, signature = commands.parse_quote_response(
            chip.run(commands.quote(response.handle, statement_tree.build([BINDING])[0], list(range(24))))
        )
        chip.run(commands.flush(response.handle))
        return TpmEvidence(attest, signature, public.encode(), format=FORMAT)

    forged = await chip.device.use(forge)
    anybody = TpmVerifier(LOCK_MUST_BE_ZERO, trusted_keys=lambda identity: True)
    assert "lacks attributes: restricted" in refusal(anybody, forged.encode())

    # The same key with a forged `restricted` attribute: the quote's qualified signer has the real ones.
    key = PublicArea.parse(forged.attestation_key)
    lying = replace(forged, attestation_key=replace(key, attributes=AK.attributes).encode())
    assert "qualified signer" in refusal(anybody, lying.encode())


async def test_an_endorsement_certificate_is_accepted(new_chip: NewChip) -> None:
    chip = new_chip(start=False)
    authority = chip.manufacture()
    chip.start()
    issuer = TpmIssuer(chip.device)
    verification = TpmVerifier(LOCK_MUST_BE_ZERO, endorsement_authorities=[authority]).begin(BINDING)
    challenge = verification.verify_evidence(await issuer.issue(BINDING))
    assert isinstance(challenge, bytes)
    found = verification.verify_answer(await issuer.answer(BINDING, challenge))
    assert found.identity == await issuer.identity()
    assert found.facts["endorsementKey"].startswith("sha256:")
    assert await chip.device.use(loaded) == []


async def test_another_tpms_answer_is_refused(new_chip: NewChip) -> None:
    """Both are genuine, but the key that signed is not in the TPM that answers."""
    chip, other = new_chip(start=False), new_chip(start=False)
    authorities = [chip.manufacture(), other.manufacture()]
    chip.start(), other.start()
    verification = TpmVerifier(LOCK_MUST_BE_ZERO, endorsement_authorities=authorities).begin(BINDING)
    document = TpmEvidence.decode(await evidence(chip))
    borrowed = TpmEvidence.decode(await evidence(other)).endorsement_certificate
    challenge = verification.verify_evidence(replace(document, endorsement_certificate=borrowed).encode())
    assert isinstance(challenge, bytes)
    for each in (chip, other):
        with pytest.raises(EvidenceUnavailable, match="TPM2_ActivateCredential"):
            await TpmIssuer(each.device).answer(BINDING, challenge)
        assert await each.device.use(loaded) == []
    with pytest.raises(EvidenceRefused, match="are not in the same TPM"):
        verification.verify_answer(bytes(32))


async def test_a_tpm_of_another_manufacturer_is_refused(new_chip: NewChip) -> None:
    chip, other = new_chip(start=False), new_chip(start=False)
    chip.manufacture()
    other_ca = other.manufacture()
    chip.start()
    verifier = TpmVerifier(LOCK_MUST_BE_ZERO, endorsement_authorities=[other_ca])
    assert "endorsement certificate" in refusal(verifier, await evidence(chip))


async def test_an_elliptic_curve_endorsement_key_answers_a_challenge(new_chip: NewChip) -> None:
    chip = new_chip()

    def read(chip: TpmConnection) -> ec.EllipticCurvePublicKey:
        with chip.endorsement_key(elliptic=True) as key:
            public = key.public.key()
            assert isinstance(public, ec.EllipticCurvePublicKey)
            return public

    authority, shown = certified(await chip.device.use(read))
    keep_in_nv(chip, EK_ECC_CERTIFICATE, shown.public_bytes(Encoding.DER) + bytes(100))
    issuer = TpmIssuer(chip.device)
    verification = TpmVerifier(LOCK_MUST_BE_ZERO, endorsement_authorities=[authority]).begin(BINDING)
    challenge = verification.verify_evidence(await issuer.issue(BINDING))
    assert isinstance(challenge, bytes)
    assert verification.verify_answer(await issuer.answer(BINDING, challenge)).kind == "tpm"


def certified(key: ec.EllipticCurvePublicKey) -> tuple[x509.Certificate, x509.Certificate]:
    """Returns a CA certificate and a certificate that it issued for this endorsement key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chips")])
    signer = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)

    def issue(public: ec.EllipticCurvePublicKey, *, authority: bool) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name if authority else x509.Name([]))
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            usage = x509.ExtendedKeyUsage([ObjectIdentifier("2.23.133.8.1")])
            builder = builder.add_extension(usage, critical=False)
        return builder.sign(signer, hashes.SHA256())

    return issue(signer.public_key(), authority=True), issue(key, authority=False)


def keep_in_nv(chip: Swtpm, index: int, data: bytes) -> None:
    (chip.folder / "nv").write_bytes(data)
    attributes = "ownerwrite|ownerread|authread|no_da"
    chip.tool("tpm2_nvdefine", hex(index), "-C", "o", "-s", str(len(data)), "-a", attributes)
    chip.tool("tpm2_nvwrite", hex(index), "-C", "o", "-i", "nv")


async def test_a_challenge_without_an_endorsement_certificate_is_an_error(new_chip: NewChip) -> None:
    chip = new_chip()
    with pytest.raises(EvidenceUnavailable, match="no endorsement certificate"):
        await TpmIssuer(chip.device).answer(BINDING, b"")


async def test_tpm2_tools_read_the_same_registers(new_chip: NewChip) -> None:
    chip = new_chip()
    await TpmRegister(chip.device).extend(CLUSTER_ID)
    assert f"15: 0x{AFTER_CLUSTER_ID.upper()}" in chip.tool("tpm2_pcrread", "sha256:15")


async def test_tpm2_checkquote_accepts_our_quotes_for_their_channel_bindings_only(new_chip: NewChip) -> None:
    """Two sessions share the quote; the root of each is its qualifying data."""
    chip = new_chip()
    issuer = TpmIssuer(chip.device)
    shared = await asyncio.gather(issuer.issue(BINDING), issuer.issue(OTHER_BINDING))
    document, other = map(TpmEvidence.decode, shared)
    assert (document.attest, document.signature) == (other.attest, other.signature)
    root = statement_tree.root_of(BINDING, Inclusion(document.position, document.path))
    assert root == statement_tree.root_of(OTHER_BINDING, Inclusion(other.position, other.path))
    key = PublicArea.parse(document.attestation_key).key()
    (chip.folder / "ak.pem").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    (chip.folder / "quote").write_bytes(document.attest)
    (chip.folder / "signature").write_bytes(document.signature)
    check = ["tpm2_checkquote", "-u", "ak.pem", "-m", "quote", "-s", "signature", "-g", "sha256", "-q"]
    chip.tool(*check, root.hex())
    with pytest.raises(AssertionError, match="tpm2_checkquote"):
        chip.tool(*check, BINDING.hex())


async def test_a_quote_of_tpm2_tools_is_parsed(new_chip: NewChip) -> None:
    """Their attestation key has another parent, so it is not trusted."""
    chip = new_chip()
    chip.tool("tpm2_createek", "-c", "ek.ctx", "-G", "ecc")
    chip.tool("tpm2_flushcontext", "-t")
    make = ["tpm2_createak", "-C", "ek.ctx", "-c", "ak.ctx", "-G", "ecc", "-g", "sha256", "-s", "ecdsa"]
    chip.tool(*make, "-u", "ak.pub", "-f", "tss")
    chip.tool("tpm2_flushcontext", "-t")
    made = ["tpm2_quote", "-c", "ak.ctx", "-l", "sha256:0,15", "-q", statement_tree.build([BINDING])[0].hex()]
    chip.tool(*made, "-m", "quote", "-s", "signature")
    parts = [(chip.folder / name).read_bytes() for name in ("quote", "signature", "ak.pub")]
    document = TpmEvidence(parts[0], parts[1], parts[2][2:], format=FORMAT)
    anybody = TpmVerifier(LOCK_MUST_BE_ZERO, trusted_keys=lambda identity: True)
    assert "qualified signer of the quote" in refusal(anybody, document.encode())


async def test_a_hundred_quotes_leave_no_handle(new_chip: NewChip) -> None:
    """A TPM holds three keys; concurrent tasks wait for each other."""
    chip = new_chip()
    issuer, verifier = TpmIssuer(chip.device), await enrolled(chip)
    statements = [bytes([number]) * 32 for number in range(100)]
    documents = await asyncio.gather(*(issuer.issue(each) for each in statements))
    for binding, document in zip(statements, documents, strict=True):
        assert isinstance(verifier.begin(binding).verify_evidence(document), AttestedPeer)
    assert await chip.device.use(loaded) == []


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "unix"])
async def test_programs_that_share_an_emulator_wait_for_each_other(new_chip: NewChip, tcp: bool) -> None:
    """Register and issuer of one node, or two processes, have separate connections."""
    chip = new_chip(tcp=tcp)
    issuers = [TpmIssuer(TpmDevice(chip.address)) for _ in range(30)]
    assert all(await asyncio.gather(*(issuer.issue(BINDING) for issuer in issuers)))
    assert await chip.device.use(loaded) == []


async def test_handles_of_a_killed_process_do_not_block_the_next(new_chip: NewChip) -> None:
    chip = new_chip()

    def leave(chip: TpmConnection) -> None:
        for _ in range(3):
            chip.run(commands.create_primary(commands.RH_ENDORSEMENT, AK))

    await chip.device.use(leave)
    assert len(await chip.device.use(loaded)) == 3
    assert await evidence(chip)
    assert await chip.device.use(loaded) == []


async def test_a_cancelled_use_does_not_disturb_the_next(new_chip: NewChip) -> None:
    """Its thread cannot be stopped; the next use waits for it."""
    chip = new_chip()
    issuer = TpmIssuer(chip.device)
    for _ in range(20):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await issuer.issue(BINDING)
        assert await issuer.issue(BINDING)
    assert await chip.device.use(loaded) == []


async def test_an_endorsement_hierarchy_with_a_password_is_an_error_with_advice(new_chip: NewChip) -> None:
    chip = new_chip()
    chip.tool("tpm2_changeauth", "-c", "endorsement", "secret")
    with pytest.raises(EvidenceUnavailable, match="clear the endorsement hierarchy's authorisation value"):
        await evidence(chip)


async def test_a_key_is_created_once_and_again_after_a_reset(new_chip: NewChip) -> None:
    """Creating it is the slowest part of a quote; a reset makes the saved key useless."""
    chip = new_chip()
    gate = GatedTpm(chip)
    gate.open.set()
    async with gate.listening():
        issuer = TpmIssuer(TpmDevice(gate.address))
        identity = await issuer.identity()
        verifier = TpmVerifier(LOCK_MUST_BE_ZERO, trusted_keys=[identity])
        for created in (1, 2):
            for _ in range(3):
                found = verifier.begin(BINDING).verify_evidence(await issuer.issue(BINDING))
                assert isinstance(found, AttestedPeer)
            assert gate.commands[commands.CommandCode.CREATE_PRIMARY] == created
            chip.power_cycle()
        assert gate.commands[commands.CommandCode.CONTEXT_LOAD] == 6
    assert await chip.device.use(loaded) == []
