"""Invalid policy.yaml files, with the exact error of each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootbridge.errors import OperatorError
from bootbridge.join_api.policy import load_operator_policy, parse_policy
from tests.documents.invalid_text import INVALID_TEXT

CLUSTER = {"kubernetesVersion": "v1.36.3", "apiServerEndpoint": "10.0.0.1:6443"}
WORKER = {"name": "worker-0", "role": "worker", "addresses": ["10.0.0.5"]}
WHOLE: dict[str, Any] = {"evidence": {"x509": {"cas": "PEM"}}, "instances": [WORKER], "cluster": CLUSTER}
EITHER = "either instances or inventory is required, and not both"
HEX = "(64 hexadecimal digits for SHA-256, 96 for SHA-384; in YAML between quotes)"


def error_of(text: str) -> str:
    with pytest.raises(OperatorError) as raised:
        parse_policy(text, "policy.yaml")
    return str(raised.value)


@pytest.mark.parametrize(("text", "error"), INVALID_TEXT)
def test_text_that_is_not_a_mapping_is_reported(text: str, error: str) -> None:
    assert error_of(text) == f"policy.yaml: {error}"


def instance(**changes: Any) -> dict[str, Any]:
    return {"instances": [{**WORKER, "name": "worker-1"}, {**WORKER, **changes}]}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"evidence": None}, "evidence: required field missing"),
        ({"evidence": {}}, "evidence: at least one kind is required (one of: tpm, x509, token)"),
        ({"evidence": "tpm"}, "evidence: invalid type: string (must be a mapping)"),
        (
            {"evidence": {"tpm": {"measurements": None}}},
            "evidence.tpm.measurements: invalid type: null (must be a mapping)",
        ),
        (
            {"evidence": {"tpm": {"measurements": {"15": "ab" * 32}}}},
            "evidence.tpm.measurements.15: register 15 is checked by the join service itself (leave 15 out)",
        ),
        (
            {"evidence": {"tpm": {"measurements": {"4": "ab"}}}},
            f"evidence.tpm.measurements.4: invalid register value 'ab' {HEX}",
        ),
        (
            {"evidence": {"token": {"tokens": {"dev-1": 1234567890123456}}}},
            "evidence.token.tokens.dev-1: invalid type: number (must be a string)",
        ),
        ({"instances": []}, EITHER),
        ({"inventory": {"http": {"url": "http://10.0.0.1"}}}, EITHER),
        ({"instances": None, "inventory": {"http": {}}}, "inventory.http.url: required field missing"),
        (
            {
                "instances": None,
                "inventory": {
                    "dns": {"controlPlanes": "cp.example", "file": "/etc/bootbridge/instance.yaml"}
                },
            },
            "inventory.dns: DNS is not accepted: its answers would decide which instances are control planes "
            "(list the instances, or use an http or static inventory)",
        ),
        ({"instances": [WORKER, WORKER]}, "instances: duplicate name 'worker-0'"),
        (
            {"instances": [{**WORKER, "name": name, "identity": "tpm:sha256:" + "ab" * 32} for name in "ab"]},
            f"instances: duplicate identity 'tpm:sha256:{'ab' * 32}'",
        ),
        (instance(role="worke"), "instances[1].role: invalid value 'worke' (one of: control-plane, worker)"),
        (instance(role=None), "instances[1].role: required field missing"),
        (instance(addresses=[]), "instances[1].addresses: required field missing"),
        (instance(addresses=["x"]), "instances[1].addresses[0]: invalid IP address 'x'"),
        (instance(addresses=[5]), "instances[1].addresses[0]: invalid type: number (must be a string)"),
        (
            instance(identity="mine"),
            "instances[1].identity: invalid identity 'mine' "
            '("tpm:sha256:" or "x509:sha256:" and 64 lower-case hexadecimal digits, or "token:" and an ID)',
        ),
        (
            instance(identity=f"sha256:{'ab' * 32}"),
            "instances[1].identity: fingerprint without a kind of evidence "
            f'(write identity: "tpm:sha256:{"ab" * 32}" for the key of a TPM, '
            f'or "x509:sha256:{"ab" * 32}" for that of a certificate)',
        ),
        (
            instance(evidence=["tpm"]),
            "instances[1].evidence: kind tpm is not in evidence (add tpm to evidence, or remove it here)",
        ),
        (
            {"roleEvidence": {"control-plane": ["x509", "token"]}},
            "roleEvidence.control-plane: kind token is not in evidence "
            "(add token to evidence, or remove it here)",
        ),
        (
            {"roleEvidence": {"worker": []}},
            "roleEvidence.worker: required field missing "
            "(list at least one kind; to issue no tickets for a role, leave it out of roles)",
        ),
        (
            {"roleEvidence": {"control-plane": ["fax"]}},
            "roleEvidence.control-plane[0]: invalid value 'fax' (one of: tpm, x509, token)",
        ),
        (instance(identiy="sha256:"), 'instances[1].identiy: unknown field (did you mean "identity"?)'),
        (
            instance(name="-"),
            "instances[1].name: invalid node name '-' "
            "(letters, digits, '-' and '.', beginning and ending with a letter or digit)",
        ),
        ({"instances": {}}, "instances: invalid type: mapping (must be a list)"),
        ({"roles": ["king"]}, "roles[0]: invalid value 'king' (one of: control-plane, worker)"),
        (
            {"ticket": {"tokenSeconds": 3601}},
            "ticket.tokenSeconds: invalid value 3601 (must be at most 3600)",
        ),
        (
            {"ticket": {"tokenSeconds": True}},
            "ticket.tokenSeconds: invalid type: boolean (must be an integer)",
        ),
        ({"ticket": {"certificateDays": 0}}, "ticket.certificateDays: invalid value 0 (must be at least 1)"),
        (
            {"ticket": {"tokenMinutes": 3}},
            "ticket.tokenMinutes: unknown field "
            "(one of: tokenSeconds, certificateDays, controlPlaneJoinSeconds)",
        ),
        ({"cluster": None}, "cluster: required field missing"),
        (
            {"cluster": {**CLUSTER, "apiServerEndpoint": "10.0.0.1"}},
            "cluster.apiServerEndpoint: invalid value '10.0.0.1' (must be host:port)",
        ),
        (
            {"cluster": {**CLUSTER, "kubernetesVersion": ""}},
            "cluster.kubernetesVersion: required field missing",
        ),
        (
            {"cluster": {**CLUSTER, "serviceSubnets": ["all"]}},
            "cluster.serviceSubnets[0]: invalid CIDR 'all' "
            "('all' does not appear to be an IPv4 or IPv6 network)",
        ),
        ({"evidense": {}}, 'evidense: unknown field (did you mean "evidence"?)'),
    ],
)
def test_an_invalid_field_is_reported_with_its_path(changes: dict[str, Any], error: str) -> None:
    assert error_of(json.dumps({**WHOLE, **changes})) == f"policy.yaml: {error}"


def test_a_policy_needs_no_cluster_and_one_in_it_is_ignored() -> None:
    for cluster in ({}, {"cluster": 7}):
        document = {"evidence": WHOLE["evidence"], "instances": [WORKER], **cluster}
        policy, sent = load_operator_policy(json.dumps(document), "policy.yaml")
        assert policy.instances[0].name == "worker-0"
        assert "cluster" not in json.loads(sent)
