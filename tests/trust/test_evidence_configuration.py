"""Evidence configuration: issuers and verifiers are built from documents, errors name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bootbridge.common.documents import convert
from bootbridge.errors import OperatorError
from bootbridge.trust.authority import Authority
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused
from bootbridge.trust.evidence.configuration import VerifierSettings, issuer_from, verifiers_from
from tests.support.software_tpm import SoftwareTpm

BINDING = bytes(range(32))
ZERO = "00" * 32
AUTHORITY = Authority.create("nodes")
PEM = AUTHORITY.cert_pem.decode()
LEAF = AUTHORITY.issue_client("node-1")
TOKEN = "dev-1.0123456789abcdef"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    LEAF.write(tmp_path, "node")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(0o600)
    return tmp_path


@pytest.mark.parametrize(
    ("issuer", "policy"),
    [
        ('{"x509": {"certificate": "FILES/node.crt", "key": "FILES/node.key"}}', {"x509": {"cas": PEM}}),
        ('{"token": {"file": "FILES/token"}}', {"token": {"tokens": {"dev-1": "0123456789abcdef"}}}),
    ],
    ids=["x509", "token"],
)
async def test_a_verifier_accepts_the_evidence_of_its_issuer(files: Path, issuer: str, policy: Any) -> None:
    made = issuer_from(json.loads(issuer.replace("FILES", str(files))), "node.yaml: evidence")
    (verifier,) = verifiers_from(policy, "policy")
    assert made.kind == verifier.kind
    assert isinstance(verifier.begin(BINDING).verify_evidence(await made.issue(BINDING)), AttestedPeer)


@pytest.mark.parametrize(
    ("name", "document", "field"),
    [
        ("node.key", '{"x509": {"certificate": "FILES/node.crt", "key": "FILES/node.key"}}', "x509.key"),
        ("token", '{"token": {"file": "FILES/token"}}', "token.file"),
    ],
)
def test_a_key_or_token_readable_by_others_is_rejected(
    files: Path, name: str, document: str, field: str
) -> None:
    (files / name).chmod(0o640)
    with pytest.raises(OperatorError, match=f"evidence: {field}: .*: readable by others .chmod 600"):
        issuer_from(json.loads(document.replace("FILES", str(files))), "evidence")


def test_a_file_without_a_token_is_an_error(files: Path) -> None:
    (files / "token").write_text("")
    with pytest.raises(OperatorError, match=r"evidence: token\.file: invalid token"):
        issuer_from({"token": {"file": str(files / "token")}}, "evidence")


def test_a_tpm_is_configured_by_its_device() -> None:
    assert issuer_from({"tpm": {"device": "unix:/run/tpm.sock"}}, "x").kind == "tpm"
    assert repr(issuer_from({"tpm": {}}, "x")) == "<TpmIssuer /dev/tpmrm0>"
    assert repr(issuer_from({"tpm": None}, "x")) == "<TpmIssuer /dev/tpmrm0>"


async def test_a_tpm_policy_holds_measurements_and_trusted_keys() -> None:
    chip, unlisted = SoftwareTpm(), SoftwareTpm()
    policy = {"tpm": {"measurements": {"15": {"expected": ZERO}}, "trustedKeys": [chip.identity]}}
    (verifier,) = verifiers_from(policy, "policy")
    assert isinstance(verifier.begin(BINDING).verify_evidence(await chip.issue(BINDING)), AttestedPeer)
    with pytest.raises(EvidenceRefused, match="not enrolled"):
        verifier.begin(BINDING).verify_evidence(await unlisted.issue(BINDING))
    chip.measure(15, b"x")
    with pytest.raises(EvidenceRefused, match="PCR 15"):
        verifier.begin(BINDING).verify_evidence(await chip.issue(BINDING))


async def test_an_inventory_may_enrol_further_keys() -> None:
    listed, known, unlisted = SoftwareTpm(), SoftwareTpm(), SoftwareTpm()
    inventory = {known.identity}
    policy = {"tpm": {"trustedKeys": [listed.identity]}}
    settings = convert(VerifierSettings, policy, "policy")
    (verifier,) = settings.verifiers("policy: ", is_enrolled=inventory.__contains__)
    for chip in (listed, known):
        assert isinstance(verifier.begin(BINDING).verify_evidence(await chip.issue(BINDING)), AttestedPeer)
    document = await unlisted.issue(BINDING)
    with pytest.raises(EvidenceRefused, match="not enrolled"):
        verifier.begin(BINDING).verify_evidence(document)
    inventory.add(unlisted.identity)
    assert isinstance(verifier.begin(BINDING).verify_evidence(document), AttestedPeer)


def test_any_number_of_kinds_may_be_accepted() -> None:
    policy = {"x509": {"cas": PEM}, "tpm": {"endorsementCAs": PEM}}
    assert [each.kind for each in verifiers_from(policy, "policy")] == ["tpm", "x509"]
    assert verifiers_from({}, "policy") == ()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "evidence: 0 kinds chosen, exactly one is required (one of: tpm, x509, token)"),
        (None, "evidence: empty document (must be a mapping)"),
        ({"tpm": {}, "token": {"file": "/x"}}, "evidence: 2 kinds chosen, exactly one is required"),
        ([], "evidence: invalid type: list (must be a mapping)"),
        ({"tmp": {}}, 'evidence: tmp: unknown field (did you mean "tpm"?)'),
        ({"tpm": []}, "evidence: tpm: invalid type: list (must be a mapping)"),
        ({"tpm": {"devise": "x"}}, 'evidence: tpm.devise: unknown field (did you mean "device"?)'),
        ({"tpm": {"device": "x"}}, "evidence: tpm.device: invalid TPM address 'x'"),
        ({"tpm": {"device": 7}}, "evidence: tpm.device: invalid type: number (must be a string)"),
        ({"x509": {}}, "evidence: x509.certificate: required field missing\nevidence: x509.key: required"),
        ({"x509": {"certificate": "/nowhere", "key": "/nowhere"}}, "cannot read /nowhere: No such file"),
        ({"token": {"file": "/nowhere"}}, "evidence: token.file: cannot read /nowhere"),
        ({"token": {"token": TOKEN}}, "evidence: token.token: unknown field (one of: file)"),
    ],
)
def test_an_invalid_issuer_is_reported_with_its_field(document: Any, message: str) -> None:
    with pytest.raises(OperatorError) as raised:
        issuer_from(document, "evidence")
    assert message in str(raised.value)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("x", "policy: invalid type: string (must be a mapping)"),
        ({"sev": {}}, "policy: sev: unknown field (one of: tpm, x509, token)"),
        ({"tpm": {}}, "policy: tpm: any TPM would be trusted"),
        ({"tpm": {"trustedKeys": []}}, "set trustedKeys, endorsementCAs, or both"),
        (
            {"tpm": {"trustedKeys": "sha256:00"}},
            "policy: tpm.trustedKeys: invalid type: string",
        ),
        ({"tpm": {"trustedKeys": None}}, "policy: tpm.trustedKeys: invalid type: null (must be a list)"),
        (
            {"tpm": {"trustedKeys": ["sha256:" + "0" * 63]}},
            "policy: tpm.trustedKeys[0]: invalid attestation key",
        ),
        (
            {"tpm": {"trustedKeys": ["SHA256:" + "0" * 64]}},
            "policy: tpm.trustedKeys[0]: invalid attestation key",
        ),
        ({"tpm": {"endorsementCAs": ""}}, "policy: tpm.endorsementCAs: required field missing"),
        ({"tpm": {"endorsementCAs": LEAF.cert_pem.decode()}}, "is not a CA certificate"),
        ({"tpm": {"measurements": {"99": ZERO}}}, "policy: tpm.measurements.99: invalid register '99'"),
        ({"tpm": {"measurements": None}}, "policy: tpm.measurements: invalid type: null (must be a mapping)"),
        ({"tpm": {"pcrs": {}}}, "policy: tpm.pcrs: unknown field"),
        ({"x509": {}}, "policy: x509.cas: required field missing"),
        ({"x509": {"cas": "/etc/ca.crt"}}, "policy: x509.cas: invalid PEM certificate"),
        (
            {"x509": {"cas": PEM, "usage": "all"}},
            "policy: x509.usage: invalid value 'all' (one of: clientAuth, serverAuth, any)",
        ),
        ({"token": {}}, "policy: token: no tokens configured"),
        ({"token": {"tokens": {"dev-1": "short"}}}, "policy: token.tokens.dev-1: invalid token"),
        (
            {"token": {"tokens": {"dev-1": 1234567890123456}}},
            "token.tokens.dev-1: invalid type: number",
        ),
    ],
)
def test_an_invalid_policy_is_reported_with_its_field(document: Any, message: str) -> None:
    with pytest.raises(OperatorError) as raised:
        verifiers_from(document, "policy")
    assert message in str(raised.value)
    assert "short" not in str(raised.value)
    assert "1234567890123456" not in str(raised.value)


def test_a_trusted_key_without_a_kind_is_that_of_a_tpm() -> None:
    """Policies of earlier versions: only a TPM has trusted keys."""
    old = convert(VerifierSettings, {"tpm": {"trustedKeys": ["sha256:" + "0" * 64]}}, "policy")
    assert old.tpm
    assert old.tpm.trusted_keys == ("tpm:sha256:" + "0" * 64,)
