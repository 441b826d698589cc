"""A rebooted node rejoins under its name, and is measured again."""

from __future__ import annotations

import pytest

from tests.support.lab_instances import Instances

pytestmark = pytest.mark.e2e

CONTROL_PLANE, WORKER = "node2", "node3"


def last_report(cluster: Instances, name: str) -> str:
    """Returns the time of the kubelet's last node status, which it sends every 10 s."""
    return str(cluster.get("lease", name, "--namespace=kube-node-lease")["spec"]["renewTime"])


def issued(cluster: Instances, name: str) -> list[str]:
    return [each["event"] for each in cluster.audited(name) if each["outcome"] == "issued"]


def test_a_rebooted_worker_rejoins_and_renews_a_due_serving_certificate(
    cluster: Instances,
) -> None:
    """With a rejoin ticket, which it requests before it is measured."""
    cluster.until(lambda: cluster.ready(WORKER), "the worker has joined", 400.0)
    old = cluster.make_serving_certificate_due(WORKER)
    before = cluster.status(WORKER)
    cluster.clear_log(WORKER)
    cluster.reboot(WORKER)
    # The old kubelet has ended, so a later report is the new one's.
    report = last_report(cluster, WORKER)
    cluster.until(lambda: cluster.status(WORKER)["phase"] == "done", "the bootstrapper is done")
    after = cluster.status(WORKER)
    assert after["lock"] == "rejoin"
    assert (after["register"], after["clusterID"]) == (before["register"], before["clusterID"])
    cluster.until(
        lambda: last_report(cluster, WORKER) != report and cluster.ready(WORKER), "its kubelet reports again"
    )
    assert "serving certificate renewed" in cluster.log(WORKER)
    assert cluster.serving_certificate(WORKER) != old
    cluster.until(lambda: "rejoin ticket" in issued(cluster, WORKER), "the ticket is audited")


def test_a_node_renews_its_serving_certificate_without_a_reboot(cluster: Instances) -> None:
    """As its timer does. A node that is locked to this cluster may renew."""
    cluster.until(lambda: cluster.ready(CONTROL_PLANE), "it has joined", 400.0)
    old = cluster.make_serving_certificate_due(CONTROL_PLANE)
    # Rejected until the bootstrapper that joined the node has ended.
    cluster.until(lambda: cluster.bootbridge(CONTROL_PLANE, "node", "renew"), "it is renewed")
    new = cluster.serving_certificate(CONTROL_PLANE)
    assert new != old
    cluster.bootbridge(CONTROL_PLANE, "node", "renew")
    assert cluster.serving_certificate(CONTROL_PLANE) == new, "no longer due"
    path = f"/api/v1/nodes/{CONTROL_PLANE}/proxy/healthz"
    cluster.until(
        lambda: cluster.kubectl("get", "--raw", path) == "ok",
        "the API server accepts it",
    )


def test_a_rejected_instance_joins_after_a_reboot_with_expected_pcrs(cluster: Instances, spare: str) -> None:
    cluster.measure(spare, 4, b"another boot loader")
    cluster.start_bootstrapper(spare)
    cluster.until_logged(spare, "PCR 4 is")
    cluster.reboot(spare)
    cluster.until(lambda: cluster.ready(spare), "it has joined", 400.0)
