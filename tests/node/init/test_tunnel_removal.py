"""The tunnel of an init is removed once every node has been Ready for a while, and only by its marker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.failures import Transient
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.node import node_paths
from bootbridge.node.init import tunnel, tunnel_removal
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.init.tunnel_removal import remove_when_unneeded
from tests.node.init.test_tunnel import EGRESS, SERVER_POD, WITH_TUNNEL, api, host, kubeadm_has_run
from tests.node.kubeadm.examples import instance, spec
from tests.support.fake_cluster import FakeCluster

__all__ = ["api", "host"]


async def test_removal_leaves_nothing_behind(host: Host, api: FakeCluster) -> None:
    events: list[StageEvent] = []
    plan = tunnel.plan_for(spec(**WITH_TUNNEL), instance())
    await tunnel.install_on_node(host, plan, lambda event: None)
    kubeadm_has_run(host, api)
    await tunnel.install_in_cluster(host, plan, lambda event: None)
    receipt = await tunnel_removal.remove(host, plan, events.append)
    assert receipt.clean, receipt.remains
    assert not host.exists(EGRESS)
    assert not host.exists(SERVER_POD)
    assert b"egress-selector" not in (host.read(f"{node_paths.MANIFESTS}/kube-apiserver.yaml") or b"")
    assert tunnel.installed_plan(host) is None
    assert host.exists(plan.paths.receipt)
    assert events[-1].state == "done"


# --- when it is unneeded


def node(name: str, ready: str = "True") -> dict[str, Any]:
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    return {"metadata": {"name": name, "uid": name}, "status": {"conditions": conditions if ready else []}}


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([], "no nodes yet"),
        ([node("cp-0", "False")], "not Ready: cp-0"),
        ([node("cp-0", "")], "not Ready: cp-0"),
        ([node("cp-0"), node("w-1", "Unknown"), node("w-0", "False")], "not Ready: w-0, w-1"),
        ([node("cp-0"), node("w-0")], ""),
    ],
)
def test_the_tunnel_is_needed_until_every_node_is_ready(nodes: list[dict[str, Any]], why: str) -> None:
    assert tunnel_removal.reason_needed(nodes) == why


class Nodes:
    """An API server that returns the next list of nodes for each request, and the last one from then on."""

    def __init__(self, *lists: list[dict[str, Any]] | int) -> None:
        self._lists = lists
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        given = self._lists[min(self.requests, len(self._lists) - 1)]
        self.requests += 1
        status, body = (given, {}) if isinstance(given, int) else (200, {"items": given})
        data = json.dumps(body)
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write((head + data).encode())
        writer.close()


async def wait_for(nodes: Nodes, host: Host, progress: list[str]) -> None:
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
        # One second passes per request.
        await tunnel_removal.wait_until_unneeded(
            host,
            lambda event: progress.append(event.text),
            quiet_seconds=3,
            clock=lambda: float(nodes.requests),
        )


async def test_the_tunnel_is_kept_until_the_same_nodes_were_ready_for_the_quiet_period(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_removal, "POLL_SECONDS", 0.01)
    one, both = [node("cp-0")], [node("cp-0"), node("w-0")]
    nodes = Nodes([], [node("cp-0", "False")], 503, one, [node("cp-0"), node("w-0", "False")], both)
    reasons: list[str] = []
    await wait_for(nodes, host, reasons)
    assert nodes.requests == 6 + 3
    assert [text.removeprefix("still needed: ") for text in reasons] == [
        "no nodes yet",
        "not Ready: cp-0",
        "503: no message",
        "not Ready: w-0",
    ]


# --- whose tunnel it is


class InstalledTunnel:
    """Replaces the functions that wait and remove; records their calls."""

    def __init__(self, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.marker = marker
        self.calls: list[str] = []
        self.plan: Plan | None = Plan()
        self.failure: Exception | None = None
        monkeypatch.setattr(tunnel_removal, "installed_plan", lambda host: self.plan)
        monkeypatch.setattr(tunnel_removal, "wait_until_unneeded", self._wait_until_unneeded)
        monkeypatch.setattr(tunnel_removal, "remove", self._remove)

    async def _wait_until_unneeded(self, host: object, progress: object, *, quiet_seconds: float) -> None:
        self.calls.append(f"wait {quiet_seconds:.0f} s")
        if self.failure:
            raise self.failure

    async def _remove(self, host: object, plan: Plan, progress: object) -> Any:
        self.calls.append("remove")

        class Receipt:
            clean = True

        return Receipt()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstalledTunnel:
    return InstalledTunnel(tmp_path / "tunnel-installed", monkeypatch)


async def test_the_tunnel_of_an_init_is_removed_when_unneeded(host: Host, installed: InstalledTunnel) -> None:
    installed.marker.touch()
    await remove_when_unneeded(host, installed.marker, 120)
    assert installed.calls == ["wait 120 s", "remove"]
    assert not installed.marker.exists()


async def test_the_tunnel_of_an_operator_is_kept(host: Host, installed: InstalledTunnel) -> None:
    await remove_when_unneeded(host, installed.marker, 120)
    assert installed.calls == []


async def test_a_tunnel_that_was_removed_by_hand_only_loses_its_marker(
    host: Host, installed: InstalledTunnel
) -> None:
    installed.marker.touch()
    installed.plan = None
    await remove_when_unneeded(host, installed.marker, 120)
    assert installed.calls == []
    assert not installed.marker.exists()


async def test_a_failed_removal_keeps_the_marker_for_the_next_start(
    host: Host, installed: InstalledTunnel, caplog: pytest.LogCaptureFixture
) -> None:
    installed.marker.touch()
    installed.failure = Transient("no kubeconfig")
    await remove_when_unneeded(host, installed.marker, 120)
    assert installed.marker.exists()
    assert "tunnel removal failed" in caplog.text
