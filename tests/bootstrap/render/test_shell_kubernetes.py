"""Runs the node's shell against a real kube-apiserver, with kubectl as oc."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.demo.network import NetworkContext
from tests.bootstrap.render.shell_node import Network, Node, needs_node
from tests.support.kubernetes import BIN, ControlPlane
from tests.support.process_program import until

pytest_plugins = ["tests.support.kubernetes"]
pytestmark = [pytest.mark.kubernetes, needs_node]
# The objects are applied when the background process has ended.
INSTALL = "bootbridge_setup\nbootbridge_manifests\nwait"


@pytest.fixture
def network(network: Network) -> Network:
    network.interface("nic0", "10.0.0.5/24")
    return network


@pytest.fixture
def cluster(tmp_path: Path, network: Network) -> Iterator[ControlPlane]:
    """In the node's network namespace."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with ControlPlane(folder, NetworkContext("node", network.name)) as control_plane:
        control_plane.start()
        yield control_plane


@pytest.fixture
def node(tmp_path: Path, network: Network, cluster: ControlPlane) -> Node:
    node = Node(tmp_path / "node", network, Plan(key_kind="ecdsa-p256"), real_clock=True)
    (node.root / "tools/oc").unlink()
    shutil.copy(BIN / "kubectl", node.root / "tools/oc")
    for kubeconfig in (node.plan.paths.kubeconfig, node.plan.paths.loopback_kubeconfig):
        node.path(kubeconfig).parent.mkdir(exist_ok=True)
        shutil.copy(cluster.kubeconfig, node.path(kubeconfig))
    return node


def test_cleanup_deletes_the_objects(node: Node, cluster: ControlPlane) -> None:
    """Without controllers the namespace waits for finalizers; with them it is deleted."""
    node.run_checked(INSTALL)
    secrets = f"/api/v1/namespaces/{node.plan.namespace}/secrets"
    cluster.api.create(secrets, {"metadata": {"name": "other-secret"}})

    node.run_checked("BOOTBRIDGE_OBJECTS_END_SECONDS=1\nbootbridge_cleanup")

    first = json.loads(node.path(node.plan.paths.receipt).read_text())
    assert [(item["resource"], item["reason"]) for item in first["remains"]] == [
        ("namespace", "waiting for finalizers")
    ]
    assert [item["metadata"]["name"] for item in cluster.api.get(secrets)["items"]] == ["other-secret"]
    cluster.start_controller_manager("namespace-controller")
    node.run_checked("BOOTBRIDGE_OBJECTS_END_SECONDS=60\nbootbridge_cleanup")
    second = json.loads(node.path(node.plan.paths.receipt).read_text())
    assert second["clean"] is True
    assert cluster.api.call("GET", f"/api/v1/namespaces/{node.plan.namespace}")[0] == 404


def test_refusals_are_in_the_receipt_and_in_an_event(node: Node, cluster: ControlPlane) -> None:
    """The real API server's words: it refuses the DaemonSet, and later the deletions."""
    policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    rules = [{"apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["daemonsets"]}]
    operations = {"operations": ["CREATE"], **rules[0]}
    cluster.api.create(
        policy,
        {
            "metadata": {"name": "guard"},
            "spec": {
                "matchConstraints": {"resourceRules": [operations]},
                "validations": [{"expression": "false", "message": "no DaemonSets here"}],
            },
        },
    )
    cluster.api.create(
        policy.replace("policies", "policybindings"),
        {"metadata": {"name": "guard"}, "spec": {"policyName": "guard", "validationActions": ["Deny"]}},
    )
    probe = {"metadata": {"name": "probe"}, "spec": {"selector": {"matchLabels": {"a": "b"}}}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    probe["spec"]["template"] = template
    path = "/apis/apps/v1/namespaces/default/daemonsets?dryRun=All"
    until(lambda: cluster.api.call("POST", path, probe)[0] == 422, "the policy is enforced")

    node.run_checked(
        f"BOOTBRIDGE_APPLY_SECONDS=6\nBOOTBRIDGE_OBJECTS_END_SECONDS=1\n{INSTALL}\nbootbridge_cleanup"
    )

    receipt = json.loads(node.path(node.plan.paths.receipt).read_text())
    (warning,) = receipt["warnings"]
    assert warning.startswith("DaemonSet")
    assert "no DaemonSets here" in warning
    assert {item["resource"] for item in receipt["found"]} >= {"secret", "namespace"}
    node.run_checked("bootbridge_publish_remains")
    events = cluster.api.get("/api/v1/namespaces/default/events")["items"]
    assert [event["reason"] for event in events if event["source"].get("component") == "bootbridge"] == [
        "BootstrapTunnelRemains"
    ]


def test_new_certificates_reach_objects_that_exist(
    node: Node, cluster: ControlPlane, network: Network
) -> None:
    """Secret and DaemonSet are replaced after a change of address."""
    node.run_checked(INSTALL)
    network.ip("addr del 10.0.0.5/24 dev nic0")
    network.address("nic0", "10.0.0.77/24")

    node.run_checked(INSTALL)

    namespace, plan = node.plan.namespace, node.plan
    secret = cluster.api.get(f"/api/v1/namespaces/{namespace}/secrets/{plan.secret_name}")
    daemonset = cluster.api.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{plan.daemonset_name}")
    assert base64.b64decode(secret["data"]["tls.crt"]) == node.path(plan.paths.agent_cert).read_bytes()
    arguments = daemonset["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--proxy-server-host=10.0.0.77" in arguments
