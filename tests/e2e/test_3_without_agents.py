"""The first minutes of a cluster: nodes are there, agents are not yet."""

from __future__ import annotations

import pytest

from bootbridge.lab import workloads
from tests.lab.admission_load import TIME_RAN_OUT
from tests.support.lab import GUARDED, OURS, Cluster

pytestmark = pytest.mark.e2e
NAMESPACE = f"--namespace={workloads.NAMESPACE}"


@pytest.fixture(scope="module", autouse=True)
def no_agents(cluster: Cluster) -> None:
    """The bridge with our server, and the agents' DaemonSet not applied yet."""
    cluster.install_tunnel(OURS)
    cluster.end_agents()
    cluster.until(lambda: cluster.connected_agents() == 0, "no agent is connected")


def test_logs_work_without_an_agent(cluster: Cluster) -> None:
    """The server dials kubelets on the machine network itself."""
    for pod in cluster.extension_pods().values():
        assert cluster.kubectl("logs", "--tail=1", pod, NAMESPACE).stdout


def test_exec_works_without_an_agent(cluster: Cluster) -> None:
    """What somebody needs who looks why the agents do not come."""
    for pod in cluster.extension_pods().values():
        words = ("exec", pod, NAMESPACE, "--", "/usr/lib/bootbridge/bin/python3", "-c", "print(6 * 7)")
        assert cluster.kubectl(*words).stdout == "42\n"


def test_a_webhook_call_fails_fast_and_says_why(cluster: Cluster) -> None:
    """Nobody waits for the webhook's timeout to hear that there is no agent."""
    done = cluster.create(workloads.pod("too-early", GUARDED), "--dry-run=server")
    assert done.returncode != 0
    assert "failed calling webhook" in done.stderr
    assert "agent" in done.stderr.lower(), done.stderr
    assert TIME_RAN_OUT not in done.stderr


def test_up_brings_the_agents_back(cluster: Cluster) -> None:
    """Running `bootbridge up` again mends what is missing, and the webhook decides again."""
    assert "nothing was changed" not in cluster.repeat_up().stdout
    cluster.until(cluster.agents_connected, "all agents are connected")
    done = cluster.create(workloads.pod("in-time", GUARDED), "--dry-run=server")
    assert done.returncode == 0, done.stderr
