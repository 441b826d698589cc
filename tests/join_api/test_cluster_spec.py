"""A cluster's specification is checked when it is made, and comes back from the wire as it went."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootbridge.errors import OperatorError
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
def test_what_is_dumped_is_loaded_again(spec: ClusterSpec) -> None:
    assert ClusterSpec.load(json.loads(spec.dump())) == spec


def test_fields_are_named_in_camel_case() -> None:
    document = json.loads(FULL.dump())
    assert document["apiServerSANs"] == ["api.example"]
    assert document["kubernetesVersion"] == "v1.36.3"
    assert document["components"][0]["installPath"] == "/usr/bin/kubelet"


def test_what_was_not_chosen_is_not_dumped() -> None:
    assert set(json.loads(ClusterSpec("v1.36.3").dump())) == {"kubernetesVersion", "name", "criSocket"}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "cluster spec: is not a mapping"),
        ({}, "kubernetesVersion is missing"),
        ({"kubernetesVersion": "v1.36.3", "podSubnet": []}, "unknown field 'podSubnet' .*podSubnets"),
        ({"kubernetesVersion": "1.19"}, "'1.19' is not a release"),
        ({"kubernetesVersion": "v1.36"}, "is not a release"),
        ({"kubernetesVersion": "v1.36.3\n"}, "is not a release"),
        ({"kubernetesVersion": 1.36}, "kubernetesVersion: is not a str"),
        (
            {"kubernetesVersion": "v1.36.3", "podSubnets": "10.0.0.0/8"},
            "podSubnets: is not a list of strings",
        ),
        ({"kubernetesVersion": "v1.36.3", "podSubnets": ["10.0.0.1/8"]}, "podSubnets: .*host bits"),
        ({"kubernetesVersion": "v1.36.3", "serviceSubnets": ["all"]}, "serviceSubnets"),
        ({"kubernetesVersion": "v1.36.3", "withoutAddons": ["dns"]}, "'dns' is no addon .*coredns"),
        ({"kubernetesVersion": "v1.36.3", "tunnel": "yes"}, "tunnel: is not a bool"),
        ({"kubernetesVersion": "v1.36.3", "tunnel": True}, "tunnelImage: is missing"),
        ({"kubernetesVersion": "v1.36.3", "kubelet": []}, "kubelet: is not a mapping"),
        ({"kubernetesVersion": "v1.36.3", "components": {}}, "components: is not a list"),
        ({"kubernetesVersion": "v1.36.3", "components": [{}]}, "needs an installPath"),
    ],
)
def test_a_mistake_is_one_clear_error_that_names_the_field(document: Any, said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        ClusterSpec.load(document)


@pytest.mark.parametrize(
    ("subnets", "families"),
    [
        ((), (4,)),
        (("172.30.0.0/16",), (4,)),
        (("fd00::/112",), (6,)),
        (("fd00::/112", "172.30.0.0/16"), (6, 4)),
    ],
)
def test_the_services_decide_the_families_and_the_first_is_primary(
    subnets: tuple[str, ...], families: tuple[int, ...]
) -> None:
    assert ClusterSpec("v1.36.3", service_subnets=subnets).families == families
