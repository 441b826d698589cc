"""Runs the shell with our image, whose agents prove their node: Role, RoleBinding, API server address."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.install import receipt
from bootbridge.bootstrap.plan.plan import Plan, ProxyImage
from bootbridge.bootstrap.render import manifests
from tests.bootstrap.render.shell_node import LOOPBACK_KUBECONFIG, Network, Node, needs_node

INSTALL = "bootbridge_setup\nbootbridge_manifests\nwait"
END = "bootbridge_cleanup\ntouch /opt/openshift/.bootkube.done"
OURS = ProxyImage("bootbridge", "registry.example/proxy:1")
OBJECTS = ("namespace", "secret", "role", "rolebinding", "daemonset")
pytestmark = needs_node


@pytest.fixture
def network(network: Network) -> Network:
    network.interface("nic0", "10.0.0.5/24")
    return network


@pytest.fixture
def node(tmp_path: Path, network: Network) -> Node:
    return Node(tmp_path / "node", network, Plan(key_kind="ecdsa-p256", image=OURS))


def objects(node: Node) -> list[str]:
    return [kind for kind in OBJECTS if list((node.root / "cluster" / kind).glob("*"))]


def calls(node: Node, verb: str) -> list[str]:
    return [call for call in node.calls("oc") if f" {verb} " in call]


def receipt_of(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.path(node.plan.paths.receipt).read_text())
    return found


def test_role_and_binding_are_applied_before_the_agents(node: Node) -> None:
    node.run_checked(INSTALL)

    applied = [call.rpartition("/bootbridge-")[2] for call in calls(node, "apply")]
    names = ("namespace", "agent-secret", "agent-role", "agent-role-binding", "agent-daemonset")
    assert applied == [f"{name}.yaml" for name in names]
    paths, plan = node.plan.paths, node.plan
    wanted = {
        paths.role_manifest: manifests.agent_role(plan),
        paths.role_binding_manifest: manifests.agent_role_binding(plan),
    }
    for path, manifest in wanted.items():
        assert yaml.safe_load(node.path(path).read_text()) == manifest


def test_the_server_gets_address_and_ca_but_no_key(node: Node) -> None:
    """The administrator's key is neither in the file nor in the arguments of a program."""
    node.record_arguments()
    logged = node.run_checked(INSTALL)

    written = json.loads(node.path(node.plan.paths.apiserver_address).read_text())
    (cluster,) = written["clusters"]
    assert cluster["cluster"] == LOOPBACK_KUBECONFIG["clusters"][0]["cluster"]  # type: ignore[index]
    assert written["contexts"] == [
        {"name": written["current-context"], "context": {"cluster": cluster["name"]}}
    ]
    assert "users" not in written
    shown = logged + (node.root / "cluster/arguments").read_text()
    assert LOOPBACK_KUBECONFIG["users"][0]["user"]["client-key-data"] not in shown  # type: ignore[index]


def test_a_changed_address_is_written_at_the_next_start(node: Node) -> None:
    node.run_checked(INSTALL)
    text = node.path(node.plan.paths.loopback_kubeconfig).read_text()
    node.path(node.plan.paths.loopback_kubeconfig).write_text(text.replace("Q0E=", "TkVX"))

    node.run_checked(INSTALL)

    assert "TkVX" in node.path(node.plan.paths.apiserver_address).read_text()


@pytest.mark.parametrize("content", [None, "{}"], ids=["missing", "empty"])
def test_an_unknown_address_does_not_stop_the_bootstrap(node: Node, content: str | None) -> None:
    """The agents are admitted with the default route only."""
    kubeconfig = node.path(node.plan.paths.loopback_kubeconfig)
    kubeconfig.unlink()
    if content is not None:
        kubeconfig.write_text(content)

    logged = node.run_checked(INSTALL)

    assert "agents can prove no node" in logged
    assert not node.path(node.plan.paths.apiserver_address).exists()
    assert objects(node) == list(OBJECTS)


def test_the_removal_deletes_them_and_the_receipt_lists_them(node: Node) -> None:
    node.run_checked(INSTALL)
    node.run_checked(END)

    assert objects(node) == []
    deleted = [call.split(" delete ")[1].split()[0] for call in calls(node, "delete")]
    assert deleted == list(reversed(OBJECTS))
    written, namespace = receipt_of(node), node.plan.namespace
    removed = [(item["resource"], item["name"]) for item in written["removed"]]
    assert removed[:5] == [
        ("daemonset", f"DaemonSet {namespace}/konnectivity-agent"),
        ("role-binding", f"RoleBinding {namespace}/konnectivity-agent"),
        ("role", f"Role {namespace}/konnectivity-agent"),
        ("secret", f"Secret {namespace}/konnectivity-agent-certs"),
        ("namespace", f"Namespace {namespace}"),
    ]
    assert ("apiserver-address", node.plan.paths.apiserver_address) in removed
    assert {resource for resource, _ in removed} <= set(receipt.RESOURCE_NAMES)
    assert written["clean"] is True


def test_a_refused_binding_is_in_the_receipt(node: Node) -> None:
    """Then the agents run, and prove no node."""
    (node.root / "cluster/refuses-rolebinding").touch()
    refused = f"until [[ $(cat {node.plan.paths.agent_objects}) == *refused* ]]; do /usr/bin/sleep 0.02; done"

    node.run_checked(f"bootbridge_setup\nbootbridge_manifests\n{refused}\n{END}")

    written = receipt_of(node)
    assert written["clean"] is True
    assert any(text.startswith("RoleBinding ") and "forbidden" in text for text in written["warnings"])


def test_a_second_start_changes_nothing(node: Node) -> None:
    node.run_checked(INSTALL)
    before = node.files()

    node.run_checked(INSTALL)

    assert node.files() == before


def test_the_payloads_programs_get_no_proof(tmp_path: Path, network: Network) -> None:
    node = Node(tmp_path / "node", network, Plan(key_kind="ecdsa-p256"))
    node.run_checked(INSTALL)

    assert objects(node) == ["namespace", "secret", "daemonset"]
    assert not node.path(node.plan.paths.apiserver_address).exists()
