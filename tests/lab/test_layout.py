"""The addresses and networks of a lab."""

from __future__ import annotations

from itertools import combinations

import pytest

from bootbridge.errors import OperatorError
from bootbridge.lab.layout import FAMILIES, NODES_MAX, Layout


@pytest.mark.parametrize("families", list(FAMILIES))
def test_node_addresses_are_in_the_machine_networks(families: str) -> None:
    layout = Layout(NODES_MAX, families)
    for node in layout.all_nodes:
        for address, network in zip(node.addresses, layout.networks.machine, strict=True):
            assert address in network


@pytest.mark.parametrize("families", list(FAMILIES))
def test_nodes_share_no_address_and_no_pod_subnet(families: str) -> None:
    layout = Layout(NODES_MAX, families)
    for one, other in combinations(layout.all_nodes, 2):
        assert not set(one.addresses) & set(other.addresses)
        assert not any(a.overlaps(b) for a in one.pod_subnets for b in other.pod_subnets)  # type: ignore[arg-type]


@pytest.mark.parametrize("families", list(FAMILIES))
def test_pod_subnets_are_in_the_cluster_network_with_the_host_prefix(families: str) -> None:
    layout = Layout(NODES_MAX, families)
    for node in layout.cluster_nodes:
        for subnet, network in zip(node.pod_subnets, layout.networks.cluster, strict=True):
            assert subnet.subnet_of(network.cidr)  # type: ignore[arg-type]
            assert subnet.prefixlen == network.host_prefix


def test_bootstrap_node_has_no_pod_subnet() -> None:
    assert Layout().bootstrap.pod_subnets == ()


@pytest.mark.parametrize("nodes", [0, -1, NODES_MAX + 1])
def test_number_of_nodes_is_limited(nodes: int) -> None:
    with pytest.raises(OperatorError, match="--nodes"):
        Layout(nodes)


def test_unknown_node_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(OperatorError, match="bootstrap, node1, node2"):
        Layout(2).node("node3")
