"""The tunnel works on a network without IPv4, and on one with both IP families."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from bootbridge.lab import workloads
from bootbridge.lab.layout import Layout
from tests.lab.admission_load import admission_load
from tests.support.lab import Cluster, Pairing, missing
from tests.support.not_run import not_run

pytestmark = pytest.mark.e2e

VERSIONS = {"ipv6": {6}, "dual": {4, 6}}
# The two protocols format an IPv6 address differently.
PROTOCOLS = {"ipv6": "HTTPConnect", "dual": "GRPC"}
NAMESPACE = f"--namespace={workloads.NAMESPACE}"


@pytest.fixture(scope="module", params=list(VERSIONS))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A lab with webhooks and a tunnel of our programs."""
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


def test_pods_have_addresses_of_the_configured_families(cluster: Cluster, pod: str) -> None:
    found = cluster.get("pod", pod, NAMESPACE)["status"]["podIPs"]
    versions = {ip_address(each["ip"]).version for each in found}
    assert versions == VERSIONS[cluster.lab.layout.families]


def test_webhooks_are_called_through_the_tunnel(cluster: Cluster) -> None:
    """The webhook decides every admission, and the API server counts its dials."""
    with admission_load(cluster):
        pass
    assert sum(cluster.metric("apiserver_egress_dialer_dial_start_total").values()) > 0


def test_logs_and_exec_reach_the_kubelet(cluster: Cluster, pod: str) -> None:
    assert cluster.kubectl("logs", "--tail=1", pod, NAMESPACE).stdout
    words = ("exec", pod, NAMESPACE, "--", "/usr/lib/bootbridge/bin/python3", "-c", "print(6 * 7)")
    assert cluster.kubectl(*words).stdout == "42\n"


def test_the_apiserver_proxy_reaches_the_pod_and_a_service_of_each_family(cluster: Cluster, pod: str) -> None:
    """The pod is dialled at its first address; a Service has endpoints of its family only."""
    proxied = f"/api/v1/namespaces/{workloads.NAMESPACE}"
    assert pod in cluster.raw(f"{proxied}/pods/{pod}:{workloads.PLAIN_PORT}/proxy/")
    for version in VERSIONS[cluster.lab.layout.families]:
        name = f"over-{version}"
        cluster.apply(_service(name, version))
        path = f"{proxied}/services/{name}:http/proxy/"
        cluster.until(lambda path=path: pod in cluster.raw(path), f"the Service {name} reaches the pod")


def _service(name: str, version: int) -> dict[str, object]:
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
