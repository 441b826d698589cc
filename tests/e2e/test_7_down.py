"""The end of the bootstrap: the production API server takes over, and of the bridge nothing is left."""

from __future__ import annotations

import pytest

from bootbridge.bootstrap.plan import BOOTSTRAP_ONLY
from bootbridge.demo.webhook import REFUSAL
from bootbridge.lab import workloads
from bootbridge.lab.extension_server import GROUP
from tests.e2e import admissions
from tests.e2e.record import DIRECTLY, Record
from tests.support.lab import GUARDED, OURS, Cluster, Json

pytestmark = pytest.mark.e2e
PRODUCTION = "node1"


@pytest.fixture(scope="module")
def production(cluster: Cluster) -> str:
    """A kube-apiserver on a cluster node; the node's name."""
    cluster.start_production(PRODUCTION)
    return PRODUCTION


@pytest.fixture(scope="module")
def receipt(cluster: Cluster) -> Json:
    """What `bootbridge down` says of itself."""
    cluster.bridge(cluster.pairing or OURS)
    # The aggregated API stays registered: without agents it is out of reach, and no namespace ends by itself.
    return cluster.unbridge()


def test_the_production_api_server_never_touches_the_tunnel(cluster: Cluster, production: str) -> None:
    """It reaches the webhook by itself while the tunnel stands: the tunnel's counters stay as they are."""
    cluster.bridge(cluster.pairing or OURS)
    before = _dials(cluster)
    done = cluster.create(workloads.pod("judged", GUARDED, {"deny": "true"}), node=production)
    assert REFUSAL in done.stderr
    assert _tunnelled_by(cluster, production) == 0
    assert _dials(cluster) >= before


def test_a_thousand_admissions_directly(cluster: Cluster, production: str, record: Record) -> None:
    """1,000 admissions by the production API server, for comparison."""
    record.latency(DIRECTLY, admissions.measure(cluster, production))


def test_down_removes_everything_it_finds(receipt: Json) -> None:
    """The receipt names what was there, and nothing that remains."""
    assert receipt["remains"] == []
    assert receipt["found"]
    assert receipt["removed"] == receipt["found"]


def test_nothing_is_left_in_the_api(cluster: Cluster, receipt: Json) -> None:
    """No object of any kind carries the label of the bootstrap."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    # The lab's own kinds are served by way of the tunnel, which is gone.
    wanted = ",".join(kind for kind in kinds if not kind.endswith(GROUP))
    words = ("-A", "-l", BOOTSTRAP_ONLY, "-o", "name", "--ignore-not-found")
    assert cluster.kubectl("get", wanted, *words, seconds=180).stdout == ""


def test_nothing_is_left_on_the_bootstrap_node(cluster: Cluster, receipt: Json, bare: set[str]) -> None:
    """Files, sockets, ports and processes are what they were before the bridge was laid."""
    cluster.until(lambda: cluster.raw("/readyz") == "ok", "the API server is back")
    found = cluster.traces()
    assert found - bare == set()
    assert bare - found == set()


def test_the_production_api_server_still_reaches_the_webhook(
    cluster: Cluster, receipt: Json, production: str
) -> None:
    """It never needed the bridge, so its end changes nothing."""
    allowed = cluster.create(workloads.pod("judged", GUARDED), "--dry-run=server", node=production)
    denied = cluster.create(workloads.pod("judged", GUARDED, {"deny": "true"}), node=production)
    assert allowed.returncode == 0, allowed.stderr
    assert REFUSAL in denied.stderr


def test_a_second_down_finds_nothing(cluster: Cluster, receipt: Json) -> None:
    """And says so, with exit code 0."""
    assert cluster.unbridge()["found"] == []


def _dials(cluster: Cluster) -> float:
    return sum(cluster.metric("apiserver_egress_dialer_dial_start_total").values())


def _tunnelled_by(cluster: Cluster, node: str) -> float:
    """Dials that the API server of a node has made through an egress proxy."""
    page = cluster.raw("/metrics", node=node).splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in page
        if line.startswith("apiserver_egress_dialer_dial_start")
    )
