"""Joins that the join service rejects: with a reason, an audit entry, and without any secret."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from bootbridge.common.files import Asset
from bootbridge.common.yaml_text import to_yaml
from bootbridge.join_api.instance import Role
from bootbridge.lab import bootstrapper_files
from tests.join_service.environment import certificate_request
from tests.support.lab_instances import Instances

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def instance_stays_blank(cluster: Instances, spare: str) -> Iterator[None]:
    """In every test, no token is created for the instance, and it stays blank."""
    # The other instances have their tokens, so a later one would be for the test's instance.
    cluster.until(lambda: cluster.ready("node1", "node2", "node3"), "all have joined")
    before = cluster.tokens()
    yield
    assert cluster.tokens() <= before
    assert cluster.is_blank(spare)


def test_a_changed_boot_loader_is_rejected(cluster: Instances, spare: str) -> None:
    """It is measured into PCR 4."""
    cluster.measure(spare, 4, b"another boot loader")
    cluster.start_bootstrapper(spare)
    cluster.until_logged(spare, "PCR 4 is")
    assert "refused" in cluster.log(spare)
    cluster.until(lambda: "PCR 4 is" in cluster.join_service_log(), "the join service logs it")
    assert "PCR 4 is" in cluster.status(spare)["reason"]
    assert cluster.is_blank(spare), "checked before the restart deletes its tmpfs"
    cluster.power_cycle(spare)


def test_an_instance_that_is_bound_to_a_cluster_is_rejected(cluster: Instances, spare: str) -> None:
    """Its lock is measured into PCR 15, which only a reboot resets."""
    cluster.measure(spare, 15, b"the cluster that it belongs to")
    refused = cluster.attack("valid-quote", spare)["refused"]
    assert "PCR 15 is" in refused
    assert "reboot" in refused
    cluster.until_audited(spare, refused.partition(": ")[2])


@pytest.mark.parametrize("attack", ["stale", "replayed", "relayed"])
def test_a_quote_of_another_session_is_rejected(attack: str, cluster: Instances, spare: str) -> None:
    """It is stale, replayed, or relayed by a man in the middle: not bound to this connection."""
    before = cluster.join_service_log().count("another session")
    refused = cluster.attack(attack, spare)["refused"]
    assert "refused our evidence" in refused
    assert "another session" in refused
    cluster.until(
        lambda: cluster.join_service_log().count("another session") > before,
        "the join service logs it",
    )


def test_a_worker_that_requests_the_control_plane_role_is_rejected(cluster: Instances, spare: str) -> None:
    refused = cluster.attack("valid-quote", spare, role=Role.CONTROL_PLANE)["refused"]
    assert f"{spare}: role control-plane requested, but the inventory has worker" in refused
    cluster.until_audited(spare, "the inventory has worker")


def test_an_instance_that_requests_another_nodes_name_is_rejected(cluster: Instances, spare: str) -> None:
    refused = cluster.attack("valid-quote", spare, name="node3")["refused"]
    assert f"node name 'node3' requested, but the evidence's key belongs to {spare}" in refused
    cluster.until_audited("node3", "the evidence's key belongs to")


def test_a_worker_with_a_changed_role_in_its_metadata_is_rejected(cluster: Instances, spare: str) -> None:
    """Changed metadata of an instance does not change the cluster's policy."""
    path = bootstrapper_files.INSTANCE_METADATA
    original = cluster.lab.file(spare, path).read_bytes()
    document = yaml.safe_load(original)
    document["self"]["role"] = str(Role.CONTROL_PLANE)
    cluster.lab.write(spare, {path: Asset(to_yaml(document), 0o600)})
    try:
        cluster.start_bootstrapper(spare)
        cluster.until_logged(spare, "role control-plane requested")
        cluster.until_audited(spare, "role control-plane requested, but the inventory has worker")
        assert cluster.is_blank(spare), "checked before the restart deletes its tmpfs"
    finally:
        cluster.power_cycle(spare)
        cluster.lab.write(spare, {path: Asset(original, 0o600)})


def test_a_key_that_is_not_enrolled_is_rejected(cluster: Instances, spare: str) -> None:
    """Simulates another TPM in the same machine by removing its key from the running policy."""
    original, policy = cluster.policy(), cluster.policy()
    (entry,) = [each for each in policy["instances"] if each["name"] == spare]
    policy["evidence"]["tpm"]["trustedKeys"].remove(key := entry.pop("identity"))

    def refused() -> str:
        # With the wrong role, so that the old policy rejects it, too.
        return str(cluster.attack("valid-quote", spare, role=Role.CONTROL_PLANE)["refused"])

    cluster.change_policy(policy)
    try:
        cluster.until(lambda: "not enrolled" in refused(), "the changed policy is in force")
        text = f"attestation key not enrolled: {key}"
        cluster.until(lambda: text in cluster.join_service_log(), "the join service logs it")
    finally:
        cluster.change_policy(original)
        cluster.until(lambda: "the inventory has worker" in refused(), "the old policy is in force again")


def test_a_workers_token_cannot_request_another_nodes_certificate(cluster: Instances, spare: str) -> None:
    """A ticket's token is valid for 15 minutes, and kubeadm alone would approve any node name with it."""
    worker, another, kubeconfig = "node3", spare, "/run/stolen.conf"
    document = yaml.safe_load(cluster.lab.file(worker, "/etc/kubernetes/kubelet.conf").read_bytes())

    def condition(node: str) -> dict[str, str]:
        """Requests this node's certificate with the worker's token; returns the request's condition."""
        request, path = certificate_request(f"stolen-{node}", node), "/run/request.yaml"
        cluster.lab.write(worker, {path: Asset(to_yaml(request), 0o600)})
        cluster.run(worker, "kubectl", f"--kubeconfig={kubeconfig}", "create", f"--filename={path}")
        status: dict[str, list[dict[str, str]]] = {}

        def decided() -> bool:
            status.update(cluster.get("csr", f"stolen-{node}")["status"])
            return "conditions" in status

        cluster.until(decided, "the request is approved or denied")
        return status["conditions"][0]

    with cluster.token_for(worker) as token:
        for user in document["users"]:
            user["user"] = {"token": token}
        cluster.lab.write(worker, {kubeconfig: Asset(to_yaml(document), 0o600)})
        assert condition(worker)["type"] == "Approved", "the token is valid and may create requests"
        denied = condition(another)
    assert denied["type"] == "Denied"
    assert f"(expected system:node:{worker})" in denied["message"]
    cluster.until(
        lambda: any(entry["outcome"] == "denied" for entry in cluster.audited(worker)),
        "it is audited",
    )
    assert "certificate" not in cluster.get("csr", f"stolen-{another}")["status"]
