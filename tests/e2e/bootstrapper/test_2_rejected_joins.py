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
def nothing_is_given(cluster: Instances, spare: str) -> Iterator[None]:
    """In every test: no token is created for it, and the instance stays blank."""
    # The others have their tokens already, so a later one would be for the test's instance.
    cluster.until(lambda: cluster.ready("node1", "node2", "node3"), "all have joined")
    before = cluster.tokens()
    yield
    assert cluster.tokens() <= before
    assert cluster.got_nothing(spare)


def test_an_instance_that_has_booted_something_else(cluster: Instances, spare: str) -> None:
    """As a changed boot loader would be measured into PCR 4."""
    cluster.measure(spare, 4, b"another boot loader")
    cluster.start_bootstrapper(spare)
    cluster.until_logged(spare, "PCR 4 is")
    assert "refused" in cluster.log(spare)
    cluster.until(lambda: "PCR 4 is" in cluster.join_service_log(), "the join service says so, too")
    assert "PCR 4 is" in cluster.status(spare)["reason"]
    assert cluster.got_nothing(spare), "before what lies on its tmpfs is gone"
    cluster.power_cycle(spare)


def test_an_instance_that_is_bound_to_a_cluster_already(cluster: Instances, spare: str) -> None:
    """Its lock is measured: only a reboot opens it again."""
    cluster.measure(spare, 15, b"the cluster that it belongs to")
    refused = cluster.trick("honest", spare)["refused"]
    assert "PCR 15 is" in refused
    assert "reboot" in refused
    cluster.until_audited(spare, refused.partition(": ")[2])


@pytest.mark.parametrize("trick", ["stale", "replayed", "relayed"])
def test_a_quote_of_another_session(trick: str, cluster: Instances, spare: str) -> None:
    """Old, shown before, or led through a machine in the middle: it is not about this connection."""
    before = cluster.join_service_log().count("another session")
    refused = cluster.trick(trick, spare)["refused"]
    assert "refused our evidence" in refused
    assert "another session" in refused
    cluster.until(
        lambda: cluster.join_service_log().count("another session") > before, "the join service says so, too"
    )


def test_a_worker_that_wants_to_be_a_control_plane(cluster: Instances, spare: str) -> None:
    refused = cluster.trick("honest", spare, role=Role.CONTROL_PLANE)["refused"]
    assert f"{spare}: role control-plane requested, but the inventory has worker" in refused
    cluster.until_audited(spare, "the inventory has worker")


def test_an_instance_that_calls_itself_by_another_s_name(cluster: Instances, spare: str) -> None:
    refused = cluster.trick("honest", spare, name="node3")["refused"]
    assert f"node name 'node3' requested, but the evidence's key belongs to {spare}" in refused
    cluster.until_audited("node3", "the evidence's key belongs to")


def test_a_worker_whose_metadata_says_that_it_is_a_control_plane(cluster: Instances, spare: str) -> None:
    """Changed metadata of an instance does not change the cluster's policy."""
    path = bootstrapper_files.INSTANCE_METADATA
    honest = cluster.lab.file(spare, path).read_bytes()
    document = yaml.safe_load(honest)
    document["self"]["role"] = str(Role.CONTROL_PLANE)
    cluster.lab.write(spare, {path: Asset(to_yaml(document), 0o600)})
    try:
        cluster.start_bootstrapper(spare)
        cluster.until_logged(spare, "role control-plane requested")
        cluster.until_audited(spare, "role control-plane requested, but the inventory has worker")
        assert cluster.got_nothing(spare), "before what lies on its tmpfs is gone"
    finally:
        cluster.power_cycle(spare)
        cluster.lab.write(spare, {path: Asset(honest, 0o600)})


def test_a_key_that_is_not_enrolled_is_refused(cluster: Instances, spare: str) -> None:
    """Another chip, in a machine that is otherwise the same; the policy is changed while all runs."""
    original, policy = cluster.policy(), cluster.policy()
    (entry,) = [each for each in policy["instances"] if each["name"] == spare]
    policy["evidence"]["tpm"]["trustedKeys"].remove(key := entry.pop("identity"))

    def refused() -> str:
        # As a control plane, which it is not: so the old policy would not let it in either.
        return str(cluster.trick("honest", spare, role=Role.CONTROL_PLANE)["refused"])

    cluster.change_policy(policy)
    try:
        cluster.until(lambda: "not enrolled" in refused(), "the changed policy is in force")
        text = f"attestation key not enrolled: {key}"
        cluster.until(lambda: text in cluster.join_service_log(), "the join service says so, too")
    finally:
        cluster.change_policy(original)
        cluster.until(lambda: "the inventory has worker" in refused(), "the old policy is in force again")


def test_a_worker_whose_token_asks_to_be_another_node(cluster: Instances, spare: str) -> None:
    """A ticket's token is the node's for a quarter of an hour, and kubeadm alone would let it be any node."""
    worker, another, kubeconfig = "node3", spare, "/run/stolen.conf"
    document = yaml.safe_load(cluster.lab.file(worker, "/etc/kubernetes/kubelet.conf").read_bytes())

    def condition(node: str) -> dict[str, str]:
        """What comes of the worker's asking for this node's certificate."""
        request, path = certificate_request(f"stolen-{node}", node), "/run/request.yaml"
        cluster.lab.write(worker, {path: Asset(to_yaml(request), 0o600)})
        cluster.run(worker, "kubectl", f"--kubeconfig={kubeconfig}", "create", f"--filename={path}")
        status: dict[str, list[dict[str, str]]] = {}

        def judged() -> bool:
            status.update(cluster.get("csr", f"stolen-{node}")["status"])
            return "conditions" in status

        cluster.until(judged, "the request is judged")
        return status["conditions"][0]

    with cluster.token_for(worker) as token:
        for user in document["users"]:
            user["user"] = {"token": token}
        cluster.lab.write(worker, {kubeconfig: Asset(to_yaml(document), 0o600)})
        assert condition(worker)["type"] == "Approved", "the token is good, and asking is allowed"
        denied = condition(another)
    assert denied["type"] == "Denied"
    assert f"(expected system:node:{worker})" in denied["message"]
    cluster.until(
        lambda: any(entry["outcome"] == "denied" for entry in cluster.audited(worker)), "the audit says so"
    )
    assert "certificate" not in cluster.get("csr", f"stolen-{another}")["status"]
