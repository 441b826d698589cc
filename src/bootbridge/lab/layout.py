"""The nodes, addresses and networks of a lab, computed without side effects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_address

from bootbridge.bootstrap.plan.plan import ClusterNetwork, IPAddress, IPNetwork, Networking
from bootbridge.errors import OperatorError

NODES_MAX = 8

_FOUR = Networking(
    machine=(IPv4Network("10.0.0.0/24"),),
    cluster=(ClusterNetwork(IPv4Network("10.128.0.0/14"), 23),),
    service=(IPv4Network("172.30.0.0/16"),),
)
_SIX = Networking(
    machine=(IPv6Network("fd00:10::/64"),),
    cluster=(ClusterNetwork(IPv6Network("fd00:10:128::/48"), 64),),
    service=(IPv6Network("fd00:172:30::/112"),),
)
_DUAL = Networking(_FOUR.machine + _SIX.machine, _FOUR.cluster + _SIX.cluster, _FOUR.service + _SIX.service)
FAMILIES: dict[str, Networking] = {"ipv4": _FOUR, "ipv6": _SIX, "dual": _DUAL}


@dataclass(frozen=True)
class LabNode:
    """A node: its addresses on the machine network, and its subnets of the pod network."""

    name: str
    addresses: tuple[IPAddress, ...]
    pod_subnets: tuple[IPNetwork, ...] = ()

    @property
    def address(self) -> IPAddress:
        return self.addresses[0]


@dataclass(frozen=True)
class Layout:
    """A bootstrap node and `nodes` cluster nodes.

    With `control_planes` there is no bootstrap node: all nodes are blank instances, of which that many may
    become control planes.
    """

    nodes: int = 2
    families: str = "ipv4"
    control_planes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= NODES_MAX:
            raise OperatorError(f"invalid value {self.nodes}", subject="--nodes", hint=f"1 to {NODES_MAX}")
        if self.families not in FAMILIES:
            hint = f"one of: {', '.join(FAMILIES)}"
            raise OperatorError(f"invalid value {self.families!r}", subject="--ip", hint=hint)
        if not 0 <= self.control_planes <= self.nodes:
            raise OperatorError(
                f"invalid value {self.control_planes} with {self.nodes} nodes",
                subject="--control-planes",
                hint=f"1 to {self.nodes}",
            )

    @property
    def blank(self) -> bool:
        """Whether the nodes are blank instances, which create the cluster themselves."""
        return self.control_planes > 0

    @property
    def networks(self) -> Networking:
        return FAMILIES[self.families]

    @cached_property
    def bootstrap(self) -> LabNode:
        return LabNode("bootstrap", self._addresses(5))

    @cached_property
    def cluster_nodes(self) -> tuple[LabNode, ...]:
        return tuple(
            LabNode(f"node{number}", self._addresses(10 + number), self._pod_subnets(number))
            for number in range(1, self.nodes + 1)
        )

    @property
    def all_nodes(self) -> tuple[LabNode, ...]:
        return self.cluster_nodes if self.blank else (self.bootstrap, *self.cluster_nodes)

    @property
    def first(self) -> LabNode:
        """The node whose API server is used by default."""
        return self.all_nodes[0]

    def may_control(self, node: LabNode) -> bool:
        """Returns whether an instance may become a control plane."""
        return node in self.cluster_nodes[: self.control_planes]

    @property
    def moved_bootstrap(self) -> LabNode:
        """The bootstrap node after its addresses have changed."""
        return LabNode("bootstrap", self._addresses(6))

    @property
    def operator_addresses(self) -> tuple[IPAddress, ...]:
        """The addresses from which the operator runs `node init`."""
        return self._addresses(1)

    def node(self, name: str) -> LabNode:
        for node in self.all_nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.all_nodes)
        raise OperatorError(f"unknown node {name!r}", hint=f"nodes: {known}")

    @property
    def apiserver_service_ips(self) -> tuple[IPAddress, ...]:
        """The first address of each service network, which is the API server's."""
        return tuple(ip_address(int(network.network_address) + 1) for network in self._service)

    @property
    def _service(self) -> tuple[IPNetwork, ...]:
        return self.networks.service

    def _addresses(self, number: int) -> tuple[IPAddress, ...]:
        return tuple(network[number] for network in self.networks.machine)

    def _pod_subnets(self, number: int) -> tuple[IPNetwork, ...]:
        found = []
        for network in self.networks.cluster:
            step = 1 << (network.cidr.max_prefixlen - network.host_prefix)
            start = int(network.cidr.network_address) + number * step
            found.append(type(network.cidr)((start, network.host_prefix)))
        return tuple(found)
