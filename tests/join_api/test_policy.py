"""policy.yaml: defaults, the lock register, and the facts of the cluster (errors: tests/documents)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootbridge.errors import OperatorError
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.components import Component
from bootbridge.join_api.instance import Role
from bootbridge.join_api.policy import (
    ClusterFacts,
    TicketSettings,
    check_policy,
    load_policy,
    parse_policy,
    with_cluster,
)
from bootbridge.join_service.active_policy import ActivePolicy
from bootbridge.trust.authority import Authority

CLUSTER = {"kubernetesVersion": "v1.36.3", "apiServerEndpoint": "10.0.0.1:6443"}
WORKER = {"name": "worker-0", "role": "worker", "addresses": ["10.0.0.5"]}
WHOLE: dict[str, Any] = {"evidence": {"x509": {"cas": "PEM"}}, "instances": [WORKER], "cluster": CLUSTER}


def changed(**changes: Any) -> dict[str, Any]:
    return {**WHOLE, **changes}


def test_defaults() -> None:
    policy = load_policy(WHOLE)
    assert policy.roles == set(Role)
    assert policy.ticket == TicketSettings(900, 365, 600)
    assert [each.name for each in policy.instances] == ["worker-0"]


def test_json_and_yaml_are_equivalent() -> None:
    yaml = """
        evidence: {x509: {cas: PEM}}
        instances: [{name: worker-0, role: worker, addresses: [10.0.0.5]}]
        cluster: {kubernetesVersion: v1.36.3, apiServerEndpoint: "10.0.0.1:6443"}
    """
    assert parse_policy(yaml) == parse_policy(json.dumps(WHOLE))


@pytest.mark.parametrize("lock", ["00" * 32, {"expected": "00" * 32}])
def test_a_zero_lock_register_is_removed_from_the_measurements(lock: Any) -> None:
    """A rebooted node of this cluster may show its own value, a new instance must show zero."""
    policy = load_policy(changed(evidence={"tpm": {"measurements": {"15": lock, "4": "ab" * 32}}}))
    assert policy.evidence.tpm is not None
    assert policy.evidence.tpm.measurements == {"4": "ab" * 32}


class TestWithCluster:
    SPEC = ClusterSpec(
        "v1.36.3",
        components=(Component("", "sha256:" + "ab" * 32, "/usr/bin/kubelet"),),
        ignore_preflight_errors=("Swap",),
    )

    def test_the_init_adds_the_facts_of_the_cluster(self) -> None:
        document = json.dumps({key: value for key, value in WHOLE.items() if key != "cluster"})
        facts = ClusterFacts.of(self.SPEC, "10.0.0.1:6443")
        assert parse_policy(with_cluster(document, facts)).cluster == facts
        assert facts.kubernetes_version == "v1.36.3"
        assert facts.components == self.SPEC.components

    def test_a_policy_is_validated_before_the_cluster_exists(self) -> None:
        good = {"evidence": {"x509": {"cas": Authority.create("machines").cert_pem.decode()}}}
        check_policy(json.dumps({**good, "instances": [WORKER]}))
        check_policy(json.dumps({"evidence": {"tpm": {}}, "instances": [WORKER]}))
        with pytest.raises(OperatorError, match=r"join policy.*evidence"):
            check_policy(json.dumps({"instances": [WORKER]}))
        with pytest.raises(OperatorError, match=r"join policy: evidence.x509.cas: "):
            check_policy(json.dumps({"evidence": {"x509": {"cas": "PEM"}}, "instances": [WORKER]}))
        with pytest.raises(OperatorError, match="join policy: line 1, column 25: unsupported type timestamp"):
            check_policy(
                "{evidence: {x509: {cas: 2026-11-16}}, "
                "instances: [{name: a, role: worker, addresses: [10.0.0.5]}]}"
            )

    def test_an_inventory_over_plain_http_logs_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        for url, warned in (("https://metadata.example", False), ("http://10.0.0.1:8080", True)):
            whole = {"evidence": {"tpm": {}}, "inventory": {"http": {"url": url}}, "cluster": CLUSTER}
            ActivePolicy.load(json.dumps(whole), "policy", lambda: 0.0)
            assert ("inventory over unencrypted http" in caplog.text) is warned

    def test_dns_is_rejected_as_inventory(self) -> None:
        inventory = {"dns": {"controlPlanes": "cp.example", "file": "/etc/bootbridge/instance.yaml"}}
        with pytest.raises(OperatorError, match="would decide which instances are control planes"):
            check_policy(json.dumps({"evidence": {"tpm": {}}, "inventory": inventory}))
        whole = {"evidence": {"tpm": {}}, "inventory": inventory, "cluster": CLUSTER}
        with pytest.raises(OperatorError, match="would decide which instances are control planes"):
            ActivePolicy.load(json.dumps(whole), "policy", lambda: 0.0)


def test_repr_does_not_show_evidence() -> None:
    """It may contain the secret of a token."""
    assert "hush" not in repr(load_policy(changed(evidence={"token": {"tokens": {"a": "hush"}}})))
