"""cluster.yaml: names in the file, round trip (errors: tests/documents)."""

from __future__ import annotations

import json

import pytest

from bootbridge.common import documents
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.components import Component

FULL = ClusterSpec(
    kubernetes_version="v1.36.3",
    name="blue",
    control_plane_endpoint="lb.example:6443",
    api_server_sans=("api.example",),
    pod_subnets=("10.128.0.0/14", "fd00:10:128::/48"),
    service_subnets=("172.30.0.0/16", "fd00:172:30::/112"),
    image_repository="registry.example/k8s",
    etcd_image_tag="3.6.1-0",
    cri_socket="unix:///run/crio/crio.sock",
    without_addons=("coredns",),
    ignore_preflight_errors=("Swap",),
    kubelet={"cgroupDriver": "cgroupfs", "evictionHard": {"memory.available": "100Mi"}},
    components=(
        Component("https://example/kubelet", "sha256:" + "0" * 64, "/usr/bin/kubelet", extract=False),
    ),
    join_service_image="registry.example/bootbridge:1",
    tunnel=True,
    tunnel_image="registry.example/bootbridge:1",
)


@pytest.mark.parametrize("spec", [ClusterSpec("v1.36.3"), FULL])
def test_dump_and_load_round_trip(spec: ClusterSpec) -> None:
    assert documents.load(ClusterSpec, spec.dump(), "cluster.yaml") == spec


def test_fields_are_named_in_camel_case() -> None:
    document = json.loads(FULL.dump())
    assert document["apiServerSANs"] == ["api.example"]
    assert document["kubernetesVersion"] == "v1.36.3"
    assert document["components"][0]["installPath"] == "/usr/bin/kubelet"


def test_empty_fields_are_not_dumped() -> None:
    assert set(json.loads(ClusterSpec("v1.36.3").dump())) == {"kubernetesVersion", "name", "criSocket"}


@pytest.mark.parametrize(
    ("subnets", "families"),
    [
        ((), (4,)),
        (("172.30.0.0/16",), (4,)),
        (("fd00::/112",), (6,)),
        (("fd00::/112", "172.30.0.0/16"), (6, 4)),
    ],
)
def test_service_subnets_decide_the_ip_families_and_the_first_is_primary(
    subnets: tuple[str, ...], families: tuple[int, ...]
) -> None:
    assert ClusterSpec("v1.36.3", service_subnets=subnets).families == families
