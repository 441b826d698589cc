"""The end of the bootstrap: the production API server takes over, and of the bridge nothing is left."""

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
PRODUCTION = "node1"
ASKED = 200


@pytest.fixture(scope="module")
def production(cluster: Cluster) -> str:
    """A kube-apiserver on a cluster node; the node's name."""
    cluster.start_permanent_apiserver(PRODUCTION)
    return PRODUCTION


@pytest.fixture(scope="module")
def receipt(cluster: Cluster) -> Json:
    """What `bootbridge down` says of itself."""
    cluster.install_tunnel(cluster.pairing or OURS)
    # The aggregated API stays registered: without agents it is out of reach, and no namespace ends by itself.
    return cluster.remove_tunnel()


def test_the_production_api_server_never_touches_the_tunnel(cluster: Cluster, production: str) -> None:
    """While the tunnel stands: what makes it dial when the bootstrap API server is asked does not here."""
    cluster.install_tunnel(cluster.pairing or OURS)
    pod = cluster.extension_pods()[PRODUCTION]
    path = f"/api/v1/namespaces/{workloads.NAMESPACE}/pods/{pod}:{workloads.PLAIN_PORT}/proxy{ONCE}"

    def dialled_for(node: str) -> float:
        before = cluster.dials()
        timed_requests.fetch(cluster, node, path, ASKED)
        return cluster.dials() - before

    assert dialled_for("bootstrap") >= ASKED
    # Not none at all: the bootstrap API server goes on with what it does by itself.
    assert dialled_for(production) < ASKED / 4
    done = cluster.create(workloads.pod("judged", GUARDED, {"deny": "true"}), node=production)
    assert DENIAL in done.stderr


def test_a_thousand_admissions_directly(cluster: Cluster, production: str, results: Results) -> None:
    """1,000 admissions by the production API server, for comparison."""
    results.add_latency(DIRECTLY, timed_requests.measure(cluster, production))


def test_down_removes_everything_it_finds(receipt: Json) -> None:
    """The receipt names what was there, and nothing that remains."""
    assert receipt["remains"] == []
    assert receipt["found"]
    assert receipt["removed"] == receipt["found"]


def test_nothing_is_left_in_the_api(cluster: Cluster, receipt: Json) -> None:
    """No object of any kind carries the label of the bootstrap."""
    # The lab's own kinds are served by way of the tunnel, which is gone; kubectl may complain of that.
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name", check=False).stdout.split()
    assert {"pods", "daemonsets.apps", "clusterroles.rbac.authorization.k8s.io"} <= set(kinds)
    wanted = ",".join(kind for kind in kinds if not kind.endswith(GROUP))
    words = ("-A", "-l", BOOTSTRAP_ONLY, "-o", "name", "--ignore-not-found")
    assert cluster.kubectl("get", wanted, *words, seconds=180).stdout == ""


def test_the_api_has_the_objects_it_had(
    cluster: Cluster, receipt: Json, api_objects_before: set[str]
) -> None:
    """Of those that belong to no namespace, by their names: what was made without a label is found, too."""

    def as_before() -> bool:
        assert not (new := cluster.cluster_objects() - api_objects_before), "\n".join(sorted(new))
        return True

    cluster.until(as_before, "nothing new is in the API")


def test_nothing_is_left_on_the_bootstrap_node(
    cluster: Cluster, receipt: Json, traces_before: set[str]
) -> None:
    """Files, sockets, ports and processes are what they were before the bridge was laid."""
    cluster.until(lambda: cluster.raw("/readyz") == "ok", "the API server is back")

    def as_before() -> bool:
        # Asked again: the kubelet and the API server are still at work, and a trace of ours would stay.
        changed = cluster.traces() ^ traces_before
        assert not changed, "\n".join(sorted(changed))
        return True

    cluster.until(as_before, "the node is as it was")


def test_the_production_api_server_still_reaches_the_webhook(
    cluster: Cluster, receipt: Json, production: str
) -> None:
    """It never needed the bridge, so its end changes nothing."""
    allowed = cluster.create(workloads.pod("judged", GUARDED), "--dry-run=server", node=production)
    denied = cluster.create(workloads.pod("judged", GUARDED, {"deny": "true"}), node=production)
    assert allowed.returncode == 0, allowed.stderr
    assert DENIAL in denied.stderr


def test_a_second_down_finds_nothing(cluster: Cluster, receipt: Json) -> None:
    """And says so, with exit code 0."""
    assert cluster.remove_tunnel()["found"] == []
