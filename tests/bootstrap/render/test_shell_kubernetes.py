"""Runs the node's shell against a real kube-apiserver, with kubectl as oc."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bootbridge.bootstrap.plan.plan import Plan, ProxyImage
from bootbridge.demo.network import NetworkContext
from bootbridge.kube.agent_pod import AgentPod, AgentPodFinder, NotProved
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


def test_an_agents_token_proves_its_node(node: Node, cluster: ControlPlane, network: Network) -> None:
    """With the file and the Role that the shell made, as the server asks; and with nothing else."""
    node.install(replace(node.plan, image=ProxyImage("bootbridge", "registry.example/proxy:1")))
    node.run_checked(INSTALL)
    namespace, plan = node.plan.namespace, node.plan
    cluster.service_account(namespace, plan.service_account_name)
    cluster.service_account(namespace, "other")
    pod = {"metadata": {"name": "agent-1"}, "spec": {"nodeName": "node-1"}}
    pod["spec"]["containers"] = [  # type: ignore[assignment]
        {
            "name": "a",
            "image": "a",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
    ]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    created = cluster.api.create(pods, pod)
    uid = created["metadata"]["uid"]
    created["status"] |= {"hostIP": "10.0.0.7", "hostIPs": [{"ip": "10.0.0.7"}]}
    created["status"] |= {"podIP": "10.128.2.3", "podIPs": [{"ip": "10.128.2.3"}]}
    status, answer = cluster.api.call("PUT", f"{pods}/agent-1/status", created)
    assert status == 200, answer
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "agent-1", "uid": uid}
    request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{plan.service_account_name}/token"
    request["spec"] = {"boundObjectRef": bound, "expirationSeconds": 3600}  # type: ignore[assignment]
    token = cluster.api.create(path, request)["status"]["token"]

    async def find(given: str) -> AgentPod:
        address = str(node.path(plan.paths.apiserver_address))
        finder = AgentPodFinder(address, namespace, plan.service_account_name, time.time)
        try:
            return await finder.find([f"Bearer {given}"])
        finally:
            await finder.aclose()

    with network.entered():
        found = asyncio.run(find(token))
        with pytest.raises(NotProved, match="HTTP 401"):
            asyncio.run(find(f"{token[:-8]}AAAAAAAA"))
        cluster.api.call("DELETE", f"{pods}/agent-1?gracePeriodSeconds=0")
        until(lambda: cluster.api.call("GET", f"{pods}/agent-1")[0] == 404, "the pod is deleted")
        with pytest.raises(NotProved, match=r"HTTP 40[14]"):
            asyncio.run(find(token))
    assert (found.node, found.host_ips, found.pod_ips) == ("node-1", ("10.0.0.7",), ("10.128.2.3",))


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
