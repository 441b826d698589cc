"""The end of the bootstrap: the permanent API server takes over, and `down` removes the tunnel completely."""

from __future__ import annotations

import pytest

from bootbridge.bootstrap.plan.plan import BOOTSTRAP_ONLY
from bootbridge.demo.webhook import DENIAL
from bootbridge.lab import workloads
from bootbridge.lab.extension_server import GROUP, ONCE
from tests.e2e import timed_requests
from tests.e2e.results import DIRECTLY, Results
from tests.support.lab import GUARDED, OURS, Cluster, Json

pytestmark = pytest.mark.e2e
PERMANENT = "node1"
ASKED = 200


@pytest.fixture(scope="module")
def permanent(cluster: Cluster) -> str:
    """A kube-apiserver on a cluster node; the node's name."""
    cluster.start_permanent_apiserver(PERMANENT)
    return PERMANENT


@pytest.fixture(scope="module")
def receipt(cluster: Cluster) -> Json:
    """The receipt of `bootbridge down`."""
    cluster.install_tunnel(cluster.pairing or OURS)
    # The aggregated API stays registered: it is unreachable without agents, so no namespace terminates by
    # itself.
    return cluster.remove_tunnel()


def test_permanent_api_server_does_not_use_the_tunnel(cluster: Cluster, permanent: str) -> None:
    """The same requests make the tunnel dial only through the bootstrap API server."""
    cluster.install_tunnel(cluster.pairing or OURS)
    pod = cluster.extension_pods()[PERMANENT]
    path = f"/api/v1/namespaces/{workloads.NAMESPACE}/pods/{pod}:{workloads.PLAIN_PORT}/proxy{ONCE}"

    def dialled_for(node: str) -> float:
        before = cluster.dials()
        timed_requests.fetch(cluster, node, path, ASKED)
        return cluster.dials() - before

    assert dialled_for("bootstrap") >= ASKED
    # Not zero: the bootstrap API server dials for its own checks.
    assert dialled_for(permanent) < ASKED / 4
    done = cluster.create(workloads.pod("reviewed", GUARDED, {"deny": "true"}), node=permanent)
    assert DENIAL in done.stderr


def test_a_thousand_admissions_directly(cluster: Cluster, permanent: str, results: Results) -> None:
    """1,000 admissions by the permanent API server, for comparison."""
    results.add_latency(DIRECTLY, timed_requests.measure(cluster, permanent))


def test_down_removes_everything_it_finds(receipt: Json) -> None:
    assert receipt["remains"] == []
    assert receipt["found"]
    assert receipt["removed"] == receipt["found"]


def test_nothing_is_left_in_the_api(cluster: Cluster, receipt: Json) -> None:
    """No object of any kind has the bootstrap label."""
    # The lab's aggregated API is unreachable without the tunnel, so kubectl may exit with an error.
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name", check=False).stdout.split()
    assert {"pods", "daemonsets.apps", "clusterroles.rbac.authorization.k8s.io"} <= set(kinds)
    wanted = ",".join(kind for kind in kinds if not kind.endswith(GROUP))
    words = ("-A", "-l", BOOTSTRAP_ONLY, "-o", "name", "--ignore-not-found")
    assert cluster.kubectl("get", wanted, *words, seconds=180).stdout == ""


def test_api_has_the_same_cluster_objects_as_before(
    cluster: Cluster, receipt: Json, api_objects_before: set[str]
) -> None:
    """By name, so that an object without our label is found, too."""

    def as_before() -> bool:
        assert not (new := cluster.cluster_objects() - api_objects_before), "\n".join(sorted(new))
        return True

    cluster.until(as_before, "nothing new is in the API")


def test_nothing_is_left_on_the_bootstrap_node(
    cluster: Cluster, receipt: Json, traces_before: set[str]
) -> None:
    """Files, sockets, ports and processes are the same as before `up`."""
    cluster.until(lambda: cluster.raw("/readyz") == "ok", "the API server is back")

    def as_before() -> bool:
        # Retried: the kubelet and the API server still change files.
        changed = cluster.traces() ^ traces_before
        assert not changed, "\n".join(sorted(changed))
        return True

    cluster.until(as_before, "the node is as it was")


def test_permanent_api_server_still_reaches_the_webhook(
    cluster: Cluster, receipt: Json, permanent: str
) -> None:
    allowed = cluster.create(workloads.pod("reviewed", GUARDED), "--dry-run=server", node=permanent)
    denied = cluster.create(workloads.pod("reviewed", GUARDED, {"deny": "true"}), node=permanent)
    assert allowed.returncode == 0, allowed.stderr
    assert DENIAL in denied.stderr


def test_a_second_down_finds_nothing(cluster: Cluster, receipt: Json) -> None:
    assert cluster.remove_tunnel()["found"] == []
