"""An init lays the bridge around kubeadm, and it is taken down when the cluster can do without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.render import apiserver_manifest
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.join_api import node_paths
from bootbridge.node.init import tunnel
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.kubeadm import documents
from tests.node.kubeadm.examples import ADDRESSES, FAMILIES, instance, spec
from tests.support.api_stand_in import ApiStandIn
from tests.support.bootstrap_node import MANIFEST

WITH_TUNNEL: dict[str, Any] = {"tunnel": True, "tunnel_image": "registry.example/bootbridge:1"}
EGRESS = "/etc/kubernetes/bootbridge/apiserver/egress-selector.yaml"
SERVER_POD = f"{node_paths.MANIFESTS}/konnectivity-server-pod.yaml"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root = tmp_path / "root"
    (root / "run").mkdir(parents=True)
    return Host(root)


@pytest.fixture
def api(tmp_path: Path, host: Host) -> Iterator[ApiStandIn]:
    # No nodes: nobody here would end their agents.
    stand_in = ApiStandIn(tmp_path, nodes=())
    yield stand_in
    stand_in.close()


def kubeadm_has_run(host: Host, api: ApiStandIn) -> None:
    """Its API server's manifest, with our patch applied as kubeadm applies it, and its kubeconfig."""
    plan = tunnel.installed_plan(host)
    assert plan is not None
    plain = MANIFEST.format(port=api.port, backend="none").encode()
    patched = apiserver_manifest.add(plain, apiserver_manifest.egress_setting(plan), "manifest")
    host.write(f"{node_paths.MANIFESTS}/kube-apiserver.yaml", Asset(patched, 0o600))
    host.write(node_paths.ADMIN_KUBECONFIG, Asset(json.dumps(api.kubeconfig()).encode(), 0o600))


# --- the plan


@pytest.mark.parametrize("families", FAMILIES)
def test_the_plan_is_the_clusters(families: str) -> None:
    plan = tunnel.plan_for(spec(families, **WITH_TUNNEL), instance(families))
    assert tuple(map(str, plan.node_ips)) == ADDRESSES[families]
    assert tuple(map(str, plan.networks.service)) == spec(families).service_subnets
    assert tuple(str(network.cidr) for network in plan.networks.cluster) == spec(families).pod_subnets
    assert (plan.image.reference, plan.image.is_ours) == ("registry.example/bootbridge:1", True)


def test_a_cluster_that_leaves_its_subnets_to_kubeadm_has_a_plan_too() -> None:
    plan = tunnel.plan_for(spec(service_subnets=(), pod_subnets=(), **WITH_TUNNEL), instance())
    assert tuple(map(str, plan.networks.service)) == ("10.96.0.0/12",)


# --- laying


async def test_before_kubeadm_the_machines_parts_and_the_patch_are_laid(host: Host) -> None:
    events: list[StageEvent] = []
    plan = tunnel.plan_for(spec(**WITH_TUNNEL), instance())
    await tunnel.install_on_node(host, plan, events.append)
    assert host.exists(EGRESS)
    assert host.exists(SERVER_POD)
    assert tunnel.installed_plan(host) == plan
    assert host.mode(node_paths.PATCHES) == 0o700
    patch = json.loads(host.read(tunnel.PATCH) or b"")
    assert {entry["op"] for entry in patch} == {"add"}
    assert f"--egress-selector-config-file={EGRESS}" in [entry["value"] for entry in patch]
    assert (events[0].state, events[-1].state) == ("started", "done")
    assert any(event.state == "output" for event in events)


def test_the_setting_is_in_this_machines_pod_and_not_in_the_clusters_configuration() -> None:
    """Another control plane has neither socket nor file, and its kube-apiserver would not start."""
    made = documents.dump(
        documents.init_documents(spec(**WITH_TUNNEL), instance(), patches=node_paths.PATCHES)
    )
    assert b"egress-selector" not in made
    assert next(yaml.safe_load_all(made))["patches"] == {"directory": node_paths.PATCHES}


async def test_after_kubeadm_the_clusters_parts_follow(host: Host, api: ApiStandIn) -> None:
    plan = tunnel.plan_for(spec(**WITH_TUNNEL), instance())
    await tunnel.install_on_node(host, plan, lambda event: None)
    kubeadm_has_run(host, api)
    await tunnel.install_in_cluster(host, plan, lambda event: None)
    assert {"daemonsets", "secrets"} <= {
        plural for plural, namespace, _ in api.objects if namespace == plan.namespace
    }


async def test_it_is_taken_down_without_remains(host: Host, api: ApiStandIn) -> None:
    events: list[StageEvent] = []
    plan = tunnel.plan_for(spec(**WITH_TUNNEL), instance())
    await tunnel.install_on_node(host, plan, lambda event: None)
    kubeadm_has_run(host, api)
    await tunnel.install_in_cluster(host, plan, lambda event: None)
    receipt = await tunnel.remove(host, plan, events.append)
    assert receipt.clean, receipt.remains
    assert not host.exists(EGRESS)
    assert not host.exists(SERVER_POD)
    assert b"egress-selector" not in (host.read(f"{node_paths.MANIFESTS}/kube-apiserver.yaml") or b"")
    assert tunnel.installed_plan(host) is None
    assert host.exists(plan.paths.receipt)
    assert events[-1].state == "done"


def test_where_none_stands_there_is_none(host: Host) -> None:
    assert tunnel.installed_plan(host) is None


# --- whether it is needed


def node(name: str, ready: str = "True") -> dict[str, Any]:
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    return {"metadata": {"name": name, "uid": name}, "status": {"conditions": conditions if ready else []}}


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([], "there are no nodes yet"),
        ([node("cp-0", "False")], "not Ready: cp-0"),
        ([node("cp-0", "")], "not Ready: cp-0"),
        ([node("cp-0"), node("w-1", "Unknown"), node("w-0", "False")], "not Ready: w-0, w-1"),
        ([node("cp-0"), node("w-0")], ""),
    ],
)
def test_it_is_needed_until_every_node_is_ready(nodes: list[dict[str, Any]], why: str) -> None:
    """A kubelet is Ready only when its network plugin works."""
    assert tunnel.reason_needed(nodes) == why


class Nodes:
    """An API server that lists other nodes each time it is asked, and the last ones for ever."""

    def __init__(self, *lists: list[dict[str, Any]] | int) -> None:
        self._lists = lists
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        given = self._lists[min(self.asked, len(self._lists) - 1)]
        self.asked += 1
        status, body = (given, {}) if isinstance(given, int) else (200, {"items": given})
        data = json.dumps(body)
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write((head + data).encode())
        writer.close()


async def waited_for(nodes: Nodes, host: Host, progress: list[str]) -> None:
    server = await asyncio.start_server(nodes.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
    }
    host.make_directory(node_paths.KUBERNETES)
    host.write(node_paths.ADMIN_KUBECONFIG, Asset(json.dumps(document).encode()))
    async with server:
        # A second from each look to the next.
        await tunnel.wait_until_unneeded(
            host, lambda event: progress.append(event.text), quiet_seconds=3, clock=lambda: float(nodes.asked)
        )


async def test_it_stays_until_the_same_nodes_have_been_ready_for_a_while(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "POLL_SECONDS", 0.01)
    one, both = [node("cp-0")], [node("cp-0"), node("w-0")]
    nodes = Nodes([], [node("cp-0", "False")], 503, one, [node("cp-0"), node("w-0", "False")], both)
    said: list[str] = []
    await waited_for(nodes, host, said)
    assert nodes.asked == 6 + 3
    assert [text.removeprefix("stays: ") for text in said] == [
        "there are no nodes yet",
        "not Ready: cp-0",
        "503: no message",
        "not Ready: w-0",
    ]
