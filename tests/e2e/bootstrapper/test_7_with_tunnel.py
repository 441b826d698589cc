"""`node init --tunnel` installs the tunnel, and removes it when all nodes have been ready for a while."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from bootbridge.bootstrap.plan.paths import KUBEADM_PATHS
from bootbridge.lab.layout import Layout
from tests.support.lab_instances import Instances

pytestmark = pytest.mark.e2e

NAMESPACE = "bootstrap-konnectivity"
RECEIPT = "/var/log/bootbridge/receipt.json"
# The quiet time of 60 s, and the restart of the kube-apiserver.
REMOVAL_SECONDS = 600.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instances]:
    """A separate lab: a control plane and a worker."""
    with Instances.up(tmp_path_factory.mktemp("cluster"), Layout(2, control_planes=1)) as instances:
        done = instances.init("--tunnel")
        assert done.returncode == 0, done.stdout + done.stderr
        yield instances


def test_calls_go_through_the_tunnel(cluster: Instances) -> None:
    cluster.until(lambda: cluster.ready("node1", "node2"), "both nodes are ready", 400.0)
    cluster.until(lambda: _logs_of_an_agent(cluster), "an agent's log is read")
    dials = [
        line
        for line in cluster.kubectl("get", "--raw", "/metrics").splitlines()
        if line.startswith("apiserver_egress_dialer_dial_duration_seconds_count")
    ]
    assert sum(float(line.rpartition(" ")[2]) for line in dials) > 0


def test_tunnel_is_removed_after_the_quiet_time(cluster: Instances) -> None:
    cluster.until(
        lambda: "tunnel removed" in cluster.log("node1"),
        "tunnel removed",
        REMOVAL_SECONDS,
    )
    receipt = json.loads(cluster.lab.file("node1", RECEIPT).read_bytes())
    assert receipt["remains"] == []
    # Not at once: the kube-apiserver restarts without the tunnel.
    cluster.until(lambda: NAMESPACE not in cluster.kubectl("get", "namespaces"), "the namespace is gone")
    assert not cluster.lab.file("node1", KUBEADM_PATHS.plan_record).exists()
    cluster.until(lambda: cluster.ready("node1", "node2"), "the nodes are ready without it")


def _logs_of_an_agent(cluster: Instances) -> str:
    agents = cluster.get("pods", f"--namespace={NAMESPACE}")["items"]
    assert agents, "no agents found"
    return cluster.kubectl("logs", f"--namespace={NAMESPACE}", agents[0]["metadata"]["name"])
