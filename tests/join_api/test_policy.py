"""The policy document: what may stand in it, and what is told about what may not."""

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
    load_policy,
    parse_policy,
    with_cluster,
)
from bootbridge.join_api.policy_check import check_policy
from bootbridge.join_service.active_policy import ActivePolicy
from bootbridge.trust.authority import Authority

CLUSTER = {"kubernetesVersion": "v1.36.3", "apiServerEndpoint": "10.0.0.1:6443"}
WORKER = {"name": "worker-0", "role": "worker", "addresses": ["10.0.0.5"]}
WHOLE: dict[str, Any] = {"evidence": {"x509": {"cas": "PEM"}}, "instances": [WORKER], "cluster": CLUSTER}


def changed(**changes: Any) -> dict[str, Any]:
    return {**WHOLE, **changes}


def test_a_short_document_has_sound_defaults() -> None:
    policy = load_policy(WHOLE)
    assert policy.roles == set(Role)
    assert policy.ticket == TicketSettings(900, 365, 600)
    assert [each.name for each in policy.instances] == ["worker-0"]


def test_json_and_yaml_say_the_same() -> None:
    yaml = """
        evidence: {x509: {cas: PEM}}
        instances: [{name: worker-0, role: worker, addresses: [10.0.0.5]}]
        cluster: {kubernetesVersion: v1.36.3, apiServerEndpoint: "10.0.0.1:6443"}
    """
    assert parse_policy(yaml) == parse_policy(json.dumps(WHOLE))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"evidence": {}}, "no kind of evidence"),
        ({"evidence": "tpm"}, "evidence: is not a mapping"),
        ({"instances": []}, "either instances or an inventory"),
        ({"inventory": {"http": {"url": "http://10.0.0.1"}}}, "either instances or an inventory"),
        ({"instances": [WORKER, WORKER]}, "two instances have the name worker-0"),
        ({"instances": [{**WORKER, "role": "king"}]}, r"instances\[0\].*role 'king'"),
        ({"instances": [{**WORKER, "addresses": []}]}, "needs an address"),
        ({"instances": [{**WORKER, "addresses": ["x"]}]}, "addresses"),
        ({"instances": [{**WORKER, "identity": "mine"}]}, "identity"),
        ({"instances": [{**WORKER, "identiy": "sha256:"}]}, "unknown field 'identiy'"),
        ({"instances": [{**WORKER, "name": "-"}]}, "name"),
        ({"roles": ["king"]}, "unknown role 'king'"),
        ({"ticket": {"tokenSeconds": 3601}}, "tokenSeconds: is not a number from 60 to 3600"),
        ({"ticket": {"tokenSeconds": True}}, "tokenSeconds"),
        ({"ticket": {"certificateDays": 0}}, "certificateDays"),
        ({"ticket": {"tokenMinutes": 3}}, "tokenMinutes: is unknown"),
        ({"cluster": {}}, "apiServerEndpoint: is missing"),
        ({"cluster": {**CLUSTER, "apiServerEndpoint": "10.0.0.1"}}, "not host:port"),
        ({"cluster": {**CLUSTER, "kubernetesVersion": ""}}, "kubernetesVersion: is missing"),
        ({"evidense": {}}, "evidense: is unknown"),
    ],
)
def test_what_is_wrong_is_told_by_field(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(OperatorError, match=complaint):
        load_policy(changed(**changes))


@pytest.mark.parametrize("text", ["[1, 2]", "a: b: c", "\x00"])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(OperatorError):
        parse_policy(text)


@pytest.mark.parametrize("lock", ["00" * 32, {"expected": "00" * 32}])
def test_the_lock_register_is_judged_for_each_call_and_not_by_the_verifier(lock: Any) -> None:
    """A rebooted node of this cluster may show its own value, a new instance must show zero."""
    policy = load_policy(changed(evidence={"tpm": {"measurements": {"15": lock, "4": "ab" * 32}}}))
    assert policy.evidence == {"tpm": {"measurements": {"4": "ab" * 32}}}


def test_a_lock_register_of_another_value_is_a_mistake() -> None:
    with pytest.raises(OperatorError, match=r"register 15.*leave 15 out"):
        load_policy(changed(evidence={"tpm": {"measurements": {15: "ab" * 32}}}))


class TestWithCluster:
    SPEC = ClusterSpec(
        "v1.36.3",
        components=(Component("", "sha256:" + "ab" * 32, "/usr/bin/kubelet"),),
        ignore_preflight_errors=("Swap",),
    )

    def test_the_init_fills_in_what_it_made(self) -> None:
        """Upstream left the Kubernetes version of its tickets empty."""
        document = json.dumps({key: value for key, value in WHOLE.items() if key != "cluster"})
        facts = ClusterFacts.of(self.SPEC, "10.0.0.1:6443")
        assert parse_policy(with_cluster(document, facts)).cluster == facts
        assert facts.kubernetes_version == "v1.36.3"
        assert facts.components == self.SPEC.components

    def test_a_users_document_can_be_checked_before_there_is_a_cluster(self) -> None:
        good = {"evidence": {"x509": {"cas": Authority.create("machines").cert_pem.decode()}}}
        check_policy(json.dumps({**good, "instances": [WORKER]}))
        check_policy(json.dumps({"evidence": {"tpm": {}}, "instances": [WORKER]}))
        with pytest.raises(OperatorError, match=r"join policy.*evidence"):
            check_policy(json.dumps({"instances": [WORKER]}))
        with pytest.raises(OperatorError, match=r"join policy: evidence.x509.cas: cannot be read"):
            check_policy(json.dumps({"evidence": {"x509": {"cas": "PEM"}}, "instances": [WORKER]}))
        with pytest.raises(OperatorError, match="holds what JSON cannot say"):
            check_policy(
                "{evidence: {x509: {cas: 2026-11-16}}, "
                "instances: [{name: a, role: worker, addresses: [10.0.0.5]}]}"
            )

    def test_an_inventory_that_anybody_on_the_way_can_write_is_warned_about(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        for url, warned in (("https://metadata.example", False), ("http://10.0.0.1:8080", True)):
            whole = {"evidence": {"tpm": {}}, "inventory": {"http": {"url": url}}, "cluster": CLUSTER}
            ActivePolicy.load(json.dumps(whole), "policy", lambda: 0.0)
            assert ("inventory over unencrypted http" in caplog.text) is warned

    def test_dns_is_no_inventory(self) -> None:
        inventory = {"dns": {"controlPlanes": "cp.example", "file": "/etc/bootbridge/instance.yaml"}}
        with pytest.raises(OperatorError, match="would choose the control planes"):
            check_policy(json.dumps({"evidence": {"tpm": {}}, "inventory": inventory}))
        whole = {"evidence": {"tpm": {}}, "inventory": inventory, "cluster": CLUSTER}
        with pytest.raises(OperatorError, match="would choose the control planes"):
            ActivePolicy.load(json.dumps(whole), "policy", lambda: 0.0)


def test_evidence_stays_out_of_repr() -> None:
    """A token's secret may stand in it."""
    assert "hush" not in repr(load_policy(changed(evidence={"token": {"tokens": {"a": "hush"}}})))
