"""`bootbridge up` and `down` with a real kube-apiserver and controllers, and a fake kubelet."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootbridge.kube.kinds import CONFIG_MAP, DAEMON_SET, NAMESPACE, POD, SECRET
from tests.support.bootstrap_node import NODES, BootstrapNode, bootstrap_node
from tests.support.kubernetes import ControlPlane

pytest_plugins = ["tests.support.kubernetes"]
pytestmark = pytest.mark.kubernetes

Json = dict[str, Any]


class RealCluster:
    """A control plane with controllers, and two Node objects."""

    def __init__(self, folder: Path) -> None:
        self._plane = ControlPlane(folder)
        self._plane.start()
        self._plane.start_controller_manager()
        self.port = self._plane.port
        self.call = self._plane.api.call
        for name in NODES:
            metadata = {"name": name, "labels": {"kubernetes.io/os": "linux"}}
            self._plane.api.create("/api/v1/nodes", {"metadata": metadata})
        # The controllers create a ConfigMap in each namespace; wait before anything is compared.
        self._plane.until(
            lambda: len(self._config_maps()) >= 4, "the controllers have created their ConfigMaps"
        )

    def _config_maps(self) -> list[str]:
        return [name for name in self.names() if name.startswith("configmaps/") and "root-ca" in name]

    def names(self) -> list[str]:
        found = []
        for kind in (NAMESPACE, SECRET, POD, DAEMON_SET, CONFIG_MAP):
            items = self._plane.api.get(f"{kind.root}/{kind.plural}")["items"]
            found += [
                f"{kind.plural}/{i['metadata'].get('namespace', '')}/{i['metadata']['name']}" for i in items
            ]
        return sorted(found)

    def kubeconfig(self, port: int) -> Json:
        document: Json = json.loads(self._plane.kubeconfig.read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        return document

    def close(self) -> None:
        self._plane.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BootstrapNode]:
    (tmp_path / "plane").mkdir()
    with bootstrap_node(tmp_path, api=RealCluster(tmp_path / "plane")) as node:
        yield node


def test_up_twice_then_down_leaves_a_real_cluster_as_it_was(node: BootstrapNode) -> None:
    """Real controllers make the agents ready; the second run changes nothing."""
    before = node.scan()
    node.up("--timeout=90s")
    assert node.run("status") == 0, node.output
    with urllib.request.urlopen(f"http://127.0.0.1:{node.plan.ports.server_admin}/status") as answer:
        agents = json.load(answer)["agents"]
    # A real kube-apiserver has accepted the agents' tokens: all that they advertise is proved.
    assert {agent["id"]: agent["ignoredIdentifiers"] for agent in agents} == dict.fromkeys(NODES, 0)
    node.up("--json")
    assert {entry["change"] for entry in json.loads(node.stdout)["resources"]} == {"unchanged"}
    node.down()
    assert node.scan() == before


def test_a_blocking_finalizer_is_named(node: BootstrapNode) -> None:
    """The receipt quotes the condition that the namespace controller sets."""
    node.up("--timeout=90s")
    name = node.plan.namespace
    held = {"metadata": {"name": "held", "namespace": name, "finalizers": ["example.com/never"]}}
    assert node.api.call("POST", f"/api/v1/namespaces/{name}/configmaps", held)[0] == 201
    assert node.run("down", "--timeout=30s") == 2
    remains: Any = node.receipt()["remains"]
    assert [item["resource"] for item in remains] == ["namespace", "record"]
    assert "example.com/never" in remains[0]["reason"]


def test_an_unreachable_api_does_not_block_the_namespace(node: BootstrapNode) -> None:
    """It may have been reachable only through the tunnel: the deletion of the empty namespace is forced."""
    node.up("--timeout=90s")
    spec = {"group": "gone.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 1}
    unreachable = {
        "metadata": {"name": "v1.gone.example.com"},
        "spec": {**spec, "service": {"namespace": "default", "name": "gone"}, "insecureSkipTLSVerify": True},
    }
    path = "/apis/apiregistration.k8s.io/v1/apiservices"
    assert node.api.call("POST", path, unreachable)[0] == 201
    node.down()
    receipt = node.receipt()
    assert receipt["remains"] == []
    (forced,) = [text for text in receipt["warnings"] if "deletion forced" in text]
    assert "gone.example.com" in forced
    assert node.api.call("GET", f"/api/v1/namespaces/{node.plan.namespace}")[0] == 404
