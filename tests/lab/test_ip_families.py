"""A bootstrap on a network without IPv4, or with both families: the bridge carries the same."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from bootbridge.lab import workloads
from bootbridge.lab.layout import Layout
from tests.lab.admission_load import storm
from tests.support.lab import Cluster, Pairing, missing
from tests.support.not_run import not_run

pytestmark = pytest.mark.e2e

VERSIONS = {"ipv6": {6}, "dual": {4, 6}}
# An IPv6 address is written in another way in each.
PROTOCOLS = {"ipv6": "HTTPConnect", "dual": "GRPC"}
NAMESPACE = f"--namespace={workloads.NAMESPACE}"


@pytest.fixture(scope="module", params=list(VERSIONS))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A lab with webhooks and a bridge of our own programs."""
    if lack := missing():
        not_run(lack)
    directory: Path = tmp_path_factory.mktemp("lab")
    with Cluster.up(directory, Layout(1, request.param)) as cluster:
        cluster.start_workloads()
        cluster.install_tunnel(Pairing("our", "our", PROTOCOLS[request.param]))
        yield cluster


@pytest.fixture
def pod(cluster: Cluster) -> str:
    (name,) = cluster.extension_pods().values()
    return name


def test_pods_have_addresses_of_the_families_asked_for(cluster: Cluster, pod: str) -> None:
    found = cluster.get("pod", pod, NAMESPACE)["status"]["podIPs"]
    versions = {ip_address(each["ip"]).version for each in found}
    assert versions == VERSIONS[cluster.lab.layout.families]


def test_webhooks_are_asked_through_the_tunnel(cluster: Cluster) -> None:
    """Every admission is judged by the webhook itself, and the API server counts its dials."""
    with storm(cluster):
        pass
    assert sum(cluster.metric("apiserver_egress_dialer_dial_start_total").values()) > 0


def test_logs_and_exec_reach_the_kubelet(cluster: Cluster, pod: str) -> None:
    assert cluster.kubectl("logs", "--tail=1", pod, NAMESPACE).stdout
    words = ("exec", pod, NAMESPACE, "--", "/usr/lib/bootbridge/bin/python3", "-c", "print(6 * 7)")
    assert cluster.kubectl(*words).stdout == "42\n"


def test_the_proxy_reaches_the_pod_and_by_each_family_a_service(cluster: Cluster, pod: str) -> None:
    """A pod is called by its first address, a Service's endpoints are those of its own family."""
    proxied = f"/api/v1/namespaces/{workloads.NAMESPACE}"
    assert pod in cluster.raw(f"{proxied}/pods/{pod}:{workloads.PLAIN_PORT}/proxy/")
    for version in VERSIONS[cluster.lab.layout.families]:
        name = f"over-{version}"
        cluster.apply(_service(name, version))
        path = f"{proxied}/services/{name}:http/proxy/"
        cluster.until(lambda path=path: pod in cluster.raw(path), f"the Service {name} leads to the pod")


def _service(name: str, version: int) -> dict[str, object]:
    """Of one family only."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": workloads.NAMESPACE},
        "spec": {
            "selector": workloads.LABELS,
            "ipFamilies": [f"IPv{version}"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "port": workloads.PLAIN_PORT}],
        },
    }
