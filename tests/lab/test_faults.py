"""Faults of a running tunnel: requests fail within their timeout, never bypass the webhook, and recover."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bootbridge.lab import faults
from tests.lab.admission_load import LONG_WEBHOOK_SECONDS, admission_load, longer_webhook_timeout
from tests.support.lab import Cluster, missing
from tests.support.not_run import not_run

pytestmark = pytest.mark.e2e

RECOVERY_SECONDS = 300.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A lab with webhooks and a tunnel of our programs."""
    if lack := missing():
        not_run(lack)
    with Cluster.up(tmp_path_factory.mktemp("lab")) as cluster:
        cluster.start_workloads()
        cluster.install_tunnel()
        yield cluster


@contextmanager
def restarted(cluster: Cluster, node: str, container: str) -> Iterator[None]:
    """Waits after the block until another container has replaced the one from before it."""
    before = set(faults.containers(cluster.lab, node, container))
    yield

    def is_replaced() -> bool:
        found = set(faults.containers(cluster.lab, node, container))
        return bool(found) and not found & before

    cluster.until(is_replaced, f"{container} is started again on {node}")


def test_a_killed_agent_is_started_again_and_calls_recover(cluster: Cluster) -> None:
    """Until then, calls go through the other node's agent or fail without a timeout."""
    with (
        longer_webhook_timeout(cluster),
        admission_load(cluster, LONG_WEBHOOK_SECONDS) as calls,
        restarted(cluster, "node1", "konnectivity-agent"),
    ):
        broken = time.monotonic()
        faults.kill(cluster.lab, "node1", "konnectivity-agent")
        calls.wait_for_recovery(broken, RECOVERY_SECONDS)
    assert calls.timed_out() == []
    cluster.until(cluster.agents_connected, "both agents are connected")


def test_a_killed_server_is_started_again_and_calls_recover(cluster: Cluster) -> None:
    """A failed call is not required: the kubelet may restart the server before the next call."""
    with (
        longer_webhook_timeout(cluster),
        admission_load(cluster, LONG_WEBHOOK_SECONDS) as calls,
        restarted(cluster, "bootstrap", "konnectivity-server"),
    ):
        faults.kill(cluster.lab, "bootstrap", "konnectivity-server")
        calls.wait_for_recovery(time.monotonic(), RECOVERY_SECONDS)
    assert calls.timed_out() == []
    cluster.until(cluster.agents_connected, "both agents are connected")


def test_a_restarted_kube_apiserver_uses_the_tunnel_again(cluster: Cluster) -> None:
    with admission_load(cluster) as calls:
        broken = time.monotonic()
        faults.restart_apiserver(cluster.lab)
        cluster.until(lambda: calls.failed(broken), "a request fails")
        calls.wait_for_recovery(broken, RECOVERY_SECONDS)


def test_calls_recover_while_a_node_is_disconnected(cluster: Cluster) -> None:
    """The pod on the other node responds. After reconnection, both agents are used again."""
    with admission_load(cluster) as calls:
        faults.disconnect(cluster.lab, "node2")
        try:
            # A failed call is not required: the kube-apiserver may reuse a connection to the other node.
            cluster.until(lambda: cluster.connected_agents() == 1, "the server drops the disconnected agent")
            calls.wait_for_recovery(time.monotonic(), RECOVERY_SECONDS)
        finally:
            faults.reconnect(cluster.lab, "node2")
        calls.wait_for_recovery(time.monotonic(), RECOVERY_SECONDS)
    cluster.until(cluster.agents_connected, "both agents are connected")


def test_the_agent_of_a_restarted_node_reconnects(cluster: Cluster) -> None:
    with admission_load(cluster) as calls:
        faults.stop_node(cluster.lab, "node2")
        calls.wait_for_recovery(time.monotonic(), RECOVERY_SECONDS)
        faults.start_node(cluster.lab, "node2", cluster.components)
        cluster.until(cluster.agents_connected, "both agents are connected")
        calls.wait_for_recovery(time.monotonic(), RECOVERY_SECONDS)


def test_a_second_up_repairs_the_tunnel_after_a_change_of_the_nodes_address(cluster: Cluster) -> None:
    """Until then, calls fail within their timeout. Runs last, because it changes the lab permanently."""
    with admission_load(cluster) as calls:
        broken = time.monotonic()
        faults.change_address(cluster.lab)
        cluster.until(lambda: calls.failed(broken), "a call fails without agents")
        cluster.until(lambda: cluster.raw("/readyz") == "ok", "the load balancer reaches the API")
        cluster.repeat_up()
        calls.wait_for_recovery(time.monotonic(), RECOVERY_SECONDS)
    assert str(cluster.lab.layout.moved_bootstrap.address) in str(
        cluster.get("daemonset", "-n", cluster.plan.namespace, cluster.plan.daemonset_name)["spec"]
    )
