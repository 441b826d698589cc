"""Without the tunnel, the bootstrap API server cannot reach the pod network."""

from __future__ import annotations

import pytest

from bootbridge.lab import workloads
from tests.support.lab import GUARDED, Cluster

pytestmark = pytest.mark.e2e


def test_bootstrap_node_has_no_route_to_pods_and_services(cluster_without_tunnel: Cluster) -> None:
    """So no later test can succeed without the tunnel."""
    pods = cluster_without_tunnel.get("pods", f"--namespace={workloads.NAMESPACE}")["items"]
    assert len(pods) == len(cluster_without_tunnel.lab.layout.cluster_nodes)
    service = cluster_without_tunnel.get("service", workloads.SERVICE, f"--namespace={workloads.NAMESPACE}")
    services = [
        *map(str, cluster_without_tunnel.lab.layout.apiserver_service_ips),
        service["spec"]["clusterIP"],
    ]
    for address in (*(pod["status"]["podIP"] for pod in pods), *services):
        done = cluster_without_tunnel.lab.namespaces("bootstrap").run(["ip", "route", "get", address])
        assert b"unreachable" in done.stderr, address


def test_webhook_with_failure_policy_fail_blocks_requests(cluster_without_tunnel: Cluster) -> None:
    done = cluster_without_tunnel.create(workloads.pod("blocked", GUARDED))
    assert done.returncode != 0
    assert "failed calling webhook" in done.stderr
    assert cluster_without_tunnel.get("pods", f"--namespace={GUARDED}")["items"] == []


def test_aggregated_api_is_unavailable(cluster_without_tunnel: Cluster) -> None:

    def is_unavailable() -> bool:
        found = cluster_without_tunnel.get("apiservice", workloads.API_SERVICE)
        conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", [])}
        return "Available" in conditions and conditions["Available"]["status"] == "False"

    cluster_without_tunnel.until(is_unavailable, "the APIService is unavailable")
    assert cluster_without_tunnel.raw("/readyz") == "ok"
