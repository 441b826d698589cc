"""`bootbridge up` on a real bootstrap node: every part is there, and the API server uses it."""

from __future__ import annotations

import json
import stat

import pytest

from bootbridge.demo.webhook import DENIAL
from bootbridge.lab import workloads
from bootbridge.lab.extension_server import ONCE
from tests.support.lab import GUARDED, OURS, Cluster

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", autouse=True)
def tunnel(cluster: Cluster) -> None:
    """Ours, as `bootbridge up` lays it."""
    cluster.install_tunnel(OURS)


def test_a_request_is_allowed_by_the_webhooks_own_word(cluster: Cluster) -> None:
    """What was blocked without the tunnel is created with it."""
    done = cluster.create(workloads.pod("allowed", GUARDED))
    assert done.returncode == 0, done.stderr
    cluster.kubectl("delete", "pod", "allowed", f"--namespace={GUARDED}", "--force", "--grace-period=0")


def test_a_request_is_denied_by_the_webhooks_own_word(cluster: Cluster) -> None:
    """The refusal that the user reads is the webhook's sentence, not a network's."""
    done = cluster.create(workloads.pod("denied", GUARDED, {"deny": "true"}))
    assert done.returncode != 0
    assert DENIAL in done.stderr
    assert "failed calling webhook" not in done.stderr


def test_the_server_runs_as_a_static_pod(cluster: Cluster) -> None:
    """The kubelet made a process of the manifest, and it answers as healthy and ready."""
    plan = cluster.plan
    assert cluster.lab.file("bootstrap", plan.paths.server_pod).exists()
    for page in ("healthz", "readyz"):
        assert cluster.on_bootstrap(f"http://127.0.0.1:{plan.ports.server_health}/{page}") == "ok"


def test_the_socket_is_there_for_root_and_its_group_alone(cluster: Cluster) -> None:
    """Who may open it may speak to every pod."""
    found = cluster.lab.file("bootstrap", cluster.plan.paths.socket).stat()
    assert stat.S_ISSOCK(found.st_mode)
    assert (found.st_uid, found.st_gid) == (0, 0)
    assert stat.S_IMODE(found.st_mode) == 0o770


def test_agents_find_the_server_on_port_8091(cluster: Cluster) -> None:
    """The one port that other machines reach."""
    assert cluster.plan.ports.agent == 8091
    assert "TCP port 8091" in cluster.ports()


def test_an_agent_runs_and_is_ready_on_every_cluster_node(cluster: Cluster) -> None:
    """And the server counts as many."""
    plan = cluster.plan
    nodes = {node.name for node in cluster.lab.layout.cluster_nodes}

    def ready() -> set[str]:
        found = cluster.get("pods", f"--namespace={plan.namespace}", "-l", f"app={plan.daemonset_name}")
        return {
            pod["spec"]["nodeName"]
            for pod in found["items"]
            for condition in pod["status"]["conditions"]
            if condition["type"] == "Ready" and condition["status"] == "True"
        }

    cluster.until(lambda: ready() == nodes, "an agent is ready on every node")
    cluster.until(lambda: cluster.connected_agents() == len(nodes), "the server counts as many")


def test_the_api_servers_metrics_count_the_dials(cluster: Cluster) -> None:
    """Each kind of traffic that we send makes the counter of the egress dialer grow."""

    def dials() -> float:
        return sum(cluster.metric("apiserver_egress_dialer_dial_start_total").values())

    before = dials()
    # Webhook calls may share one connection; here the pod ends it after each.
    for pod in cluster.extension_pods().values():
        cluster.raw(f"/api/v1/namespaces/{workloads.NAMESPACE}/pods/{pod}:{workloads.PLAIN_PORT}/proxy{ONCE}")
    assert dials() > before
    labels = " ".join(cluster.metric("apiserver_egress_dialer_dial_start_total"))
    assert 'protocol="grpc"' in labels
    assert 'transport="uds"' in labels


def test_status_says_that_it_works(cluster: Cluster) -> None:
    """`bootbridge status` on the node agrees with all of the above."""

    def works() -> bool:
        done = cluster.bootbridge("status", "--json")
        document = json.loads(done.stdout)
        assert done.returncode == 0, document
        return document["works"] is True

    cluster.until(works, "the bridge works")


def test_up_again_changes_nothing(cluster: Cluster) -> None:
    """A second run finds everything as it should be."""
    assert "nothing was changed" in cluster.repeat_up().stdout
