"""Before the first agent connects: kubelets are reachable, pods are not."""

from __future__ import annotations

import pytest

from bootbridge.lab import workloads
from tests.lab.admission_load import TIMEOUT_ERROR
from tests.support.lab import GUARDED, OURS, Cluster

pytestmark = pytest.mark.e2e
NAMESPACE = f"--namespace={workloads.NAMESPACE}"


@pytest.fixture(scope="module", autouse=True)
def no_agents(cluster: Cluster) -> None:
    """The tunnel with our server, without the agents' DaemonSet."""
    cluster.install_tunnel(OURS)
    cluster.end_agents()
    cluster.until(lambda: cluster.connected_agents() == 0, "no agent is connected")


def test_logs_work_without_an_agent(cluster: Cluster) -> None:
    """The server itself dials kubelets on the machine network."""
    for pod in cluster.extension_pods().values():
        assert cluster.kubectl("logs", "--tail=1", pod, NAMESPACE).stdout


def test_exec_works_without_an_agent(cluster: Cluster) -> None:
    """An operator needs it to find out why agents do not connect."""
    for pod in cluster.extension_pods().values():
        words = ("exec", pod, NAMESPACE, "--", "/usr/lib/bootbridge/bin/python3", "-c", "print(6 * 7)")
        assert cluster.kubectl(*words).stdout == "42\n"


def test_webhook_call_fails_at_once_with_the_reason(cluster: Cluster) -> None:
    """Not only after the webhook's timeout."""
    done = cluster.create(workloads.pod("too-early", GUARDED), "--dry-run=server")
    assert done.returncode != 0
    assert "failed calling webhook" in done.stderr
    assert "agent" in done.stderr.lower(), done.stderr
    assert TIMEOUT_ERROR not in done.stderr


def test_up_restores_the_agents(cluster: Cluster) -> None:
    """A second `bootbridge up` creates what is missing."""
    assert "nothing was changed" not in cluster.repeat_up().stdout
    cluster.until(cluster.agents_connected, "all agents are connected")
    done = cluster.create(workloads.pod("in-time", GUARDED), "--dry-run=server")
    assert done.returncode == 0, done.stderr
