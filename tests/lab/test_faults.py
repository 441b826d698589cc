"""What breaks a bridge in life: requests fail in time, nothing passes unseen, and then it carries again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bootbridge.lab import faults
from tests.lab.admission_load import PATIENCE_SECONDS, patience, storm
from tests.support.lab import Cluster, missing
from tests.support.not_run import not_run

pytestmark = pytest.mark.e2e

RECOVERY_SECONDS = 300.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A lab with webhooks and a bridge of our own programs."""
    if lack := missing():
        not_run(lack)
    with Cluster.up(tmp_path_factory.mktemp("lab")) as cluster:
        cluster.start_workloads()
        cluster.install_tunnel()
        yield cluster


@contextmanager
def restarted(cluster: Cluster, node: str, container: str) -> Iterator[None]:
    """Whatever ends the container meanwhile, another takes its place."""
    before = set(faults.containers(cluster.lab, node, container))
    yield

    def is_another() -> bool:
        found = set(faults.containers(cluster.lab, node, container))
        return bool(found) and not found & before

    cluster.until(is_another, f"{container} is started again on {node}")


def test_a_killed_agent_is_started_again_and_calls_recover(cluster: Cluster) -> None:
    """Meanwhile calls go through the other node's agent, or fail at once."""
    with (
        patience(cluster),
        storm(cluster, PATIENCE_SECONDS) as calls,
        restarted(cluster, "node1", "konnectivity-agent"),
    ):
        broken = time.monotonic()
        faults.kill(cluster.lab, "node1", "konnectivity-agent")
        calls.judged_again(broken, RECOVERY_SECONDS)
    assert calls.timed_out() == []
    cluster.until(cluster.agents_connected, "both agents are back")


def test_a_killed_server_is_started_again_and_calls_recover(cluster: Cluster) -> None:
    """Whether any call fails meanwhile is up to the kubelet: the server may be back before the next one."""
    with (
        patience(cluster),
        storm(cluster, PATIENCE_SECONDS) as calls,
        restarted(cluster, "bootstrap", "konnectivity-server"),
    ):
        faults.kill(cluster.lab, "bootstrap", "konnectivity-server")
        calls.judged_again(time.monotonic(), RECOVERY_SECONDS)
    assert calls.timed_out() == []
    cluster.until(cluster.agents_connected, "both agents are back")


def test_a_restarted_kube_apiserver_goes_through_the_tunnel_again(cluster: Cluster) -> None:
    with storm(cluster) as calls:
        broken = time.monotonic()
        faults.restart_apiserver(cluster.lab)
        cluster.until(lambda: calls.failed(broken), "a request finds no kube-apiserver")
        calls.judged_again(broken, RECOVERY_SECONDS)


def test_calls_recover_from_a_cut_link_without_waiting_for_it(cluster: Cluster) -> None:
    """The pod on the lost node is given up, the one on the other node answers; mended, both carry again."""
    with storm(cluster) as calls:
        faults.disconnect(cluster.lab, "node2")
        try:
            # Not "a call fails": the kube-apiserver's kept connection may lead to the other node.
            cluster.until(lambda: cluster.connected_agents() == 1, "the server gives the lost agent up")
            calls.judged_again(time.monotonic(), RECOVERY_SECONDS)
        finally:
            faults.reconnect(cluster.lab, "node2")
        calls.judged_again(time.monotonic(), RECOVERY_SECONDS)
    cluster.until(cluster.agents_connected, "both agents are back")


def test_a_node_that_lost_its_power_comes_back_with_its_agent(cluster: Cluster) -> None:
    with storm(cluster) as calls:
        faults.stop_node(cluster.lab, "node2")
        calls.judged_again(time.monotonic(), RECOVERY_SECONDS)
        faults.start_node(cluster.lab, "node2", cluster.components)
        cluster.until(cluster.agents_connected, "both agents are back")
        calls.judged_again(time.monotonic(), RECOVERY_SECONDS)


def test_after_the_node_s_address_changed_up_again_is_all_it_takes(cluster: Cluster) -> None:
    """Last, for the lab is another one then: calls fail in time, and the agents are led to the new place."""
    with storm(cluster) as calls:
        broken = time.monotonic()
        faults.change_address(cluster.lab)
        cluster.until(lambda: calls.failed(broken), "a call finds no agent any more")
        cluster.until(lambda: cluster.raw("/readyz") == "ok", "the API is reachable by its load balancer")
        cluster.repeat_up()
        calls.judged_again(time.monotonic(), RECOVERY_SECONDS)
    assert str(cluster.lab.layout.moved_bootstrap.address) in str(
        cluster.get("daemonset", "-n", cluster.plan.namespace, cluster.plan.daemonset_name)["spec"]
    )
