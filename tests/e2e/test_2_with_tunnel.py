"""`bootbridge up` on a real bootstrap node: every resource exists, and the API server uses the tunnel."""

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
    """Our programs, installed by `bootbridge up`."""
    cluster.install_tunnel(OURS)


def test_webhook_allows_a_request(cluster: Cluster) -> None:
    """The same request is blocked without the tunnel."""
    done = cluster.create(workloads.pod("allowed", GUARDED))
    assert done.returncode == 0, done.stderr
    cluster.kubectl("delete", "pod", "allowed", f"--namespace={GUARDED}", "--force", "--grace-period=0")


def test_webhook_denies_a_request(cluster: Cluster) -> None:
    """The user gets the webhook's message, not a network error."""
    done = cluster.create(workloads.pod("denied", GUARDED, {"deny": "true"}))
    assert done.returncode != 0
    assert DENIAL in done.stderr
    assert "failed calling webhook" not in done.stderr


def test_server_runs_as_a_static_pod(cluster: Cluster) -> None:
    """It reports healthy and ready."""
    plan = cluster.plan
    assert cluster.lab.file("bootstrap", plan.paths.server_pod).exists()
    for page in ("healthz", "readyz"):
        assert cluster.on_bootstrap(f"http://127.0.0.1:{plan.ports.server_health}/{page}") == "ok"


def test_socket_is_accessible_only_to_root_and_its_group(cluster: Cluster) -> None:
    """A process that can open it reaches every pod."""
    found = cluster.lab.file("bootstrap", cluster.plan.paths.socket).stat()
    assert stat.S_ISSOCK(found.st_mode)
    assert (found.st_uid, found.st_gid) == (0, 0)
    assert stat.S_IMODE(found.st_mode) == 0o770


def test_server_listens_for_agents_on_port_8091(cluster: Cluster) -> None:
    assert cluster.plan.ports.agent == 8091
    assert "TCP port 8091" in cluster.ports()


def test_an_agent_is_ready_on_every_cluster_node(cluster: Cluster) -> None:
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
    cluster.until(lambda: cluster.connected_agents() == len(nodes), "the server counts all agents")


def test_api_server_metrics_count_the_dials(cluster: Cluster) -> None:

    def dials() -> float:
        return sum(cluster.metric("apiserver_egress_dialer_dial_start_total").values())

    before = dials()
    # Webhook calls may share one connection; here the pod closes it after each response.
    for pod in cluster.extension_pods().values():
        cluster.raw(f"/api/v1/namespaces/{workloads.NAMESPACE}/pods/{pod}:{workloads.PLAIN_PORT}/proxy{ONCE}")
    assert dials() > before
    labels = " ".join(cluster.metric("apiserver_egress_dialer_dial_start_total"))
    assert 'protocol="grpc"' in labels
    assert 'transport="uds"' in labels


def test_status_reports_a_working_tunnel(cluster: Cluster) -> None:

    def works() -> bool:
        done = cluster.bootbridge("status", "--json")
        document = json.loads(done.stdout)
        assert done.returncode == 0, document
        return document["works"] is True

    cluster.until(works, "the tunnel works")


def test_top_shows_the_server_of_this_node(cluster: Cluster) -> None:
    document = json.loads(cluster.bootbridge("top", "--json").stdout)
    nodes = len(cluster.lab.layout.cluster_nodes)
    assert (document["program"], document["ready"], document["agents"]) == ("proxy-server", True, nodes)


def test_top_reaches_agents_by_port_forward(cluster: Cluster) -> None:
    """Through kubectl, the kube-apiserver and the kubelet, to a port on the pod's loopback address."""
    for node in cluster.lab.layout.cluster_nodes:
        done = cluster.with_kubectl("top", "--json", f"--agent={node.name}")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert (document["page"], document["program"]) == ("/status", "proxy-agent")
        assert document["status"]["agentID"] == node.name


def test_top_names_the_agents_to_choose_from(cluster: Cluster) -> None:
    done = cluster.with_kubectl("top", "--json", f"--namespace={cluster.plan.namespace}")
    assert done.returncode == 1
    for node in cluster.lab.layout.cluster_nodes:
        assert f" on {node.name}" in done.stderr


def test_second_up_changes_nothing(cluster: Cluster) -> None:
    assert "nothing was changed" in cluster.repeat_up().stdout
