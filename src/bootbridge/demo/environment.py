"""Where each program of the demo runs, and on which addresses and ports it listens."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

from bootbridge.demo.network import (
    DemoNamespaces,
    NamespacesUnavailable,
    NetworkContext,
    VethPair,
    ipv6_works,
    namespaces_unavailable_reason,
)

POD_IPV4, POD_IPV6 = "10.128.2.5", "fd00:10:128:2::5"


@dataclass(frozen=True)
class DemoNode:
    """A node with an agent."""

    name: str
    network: NetworkContext
    # The server's address as the node dials it, and the node's addresses as the pod sees them.
    server_host: str
    addresses_seen_by_pod: tuple[str, ...]
    health_port: int
    admin_port: int


@dataclass(frozen=True)
class DemoEnvironment:
    """A control plane, two nodes and a pod."""

    control_plane: NetworkContext
    nodes: tuple[DemoNode, DemoNode]
    pod: NetworkContext
    pod_addresses: tuple[str, ...]
    pod_port: int
    server_bind: str
    agent_port: int
    health_port: int
    admin_port: int

    @property
    def isolated(self) -> bool:
        """Whether the control plane reaches the pod only through the tunnel."""
        return bool(self.control_plane.namespace)

    @property
    def server_hosts(self) -> list[str]:
        return sorted({node.server_host for node in self.nodes})

    def node_seen_as(self, address: str) -> DemoNode | None:
        """Returns the node that a connection came through, by its source address at the pod."""
        return next((node for node in self.nodes if address in node.addresses_seen_by_pod), None)


def in_namespaces(namespaces: DemoNamespaces, ipv6: bool) -> DemoEnvironment:
    """Creates the namespaces: both nodes are linked to control plane and pod, and none forwards."""
    control_plane = namespaces.create("control-plane", "control plane")
    node1, node2 = namespaces.create("node1", "node1"), namespaces.create("node2", "node2")
    pod = namespaces.create("pod", "pod")
    uplinks = [[("192.0.2.1", "192.0.2.11")], [("192.0.2.1", "192.0.2.12")]]
    podlinks = [[(POD_IPV4, "10.128.0.1")], [(POD_IPV4, "10.128.1.1")]]
    if ipv6:
        uplinks[1].append(("2001:db8::1", "2001:db8::12"))
        podlinks[0].append((POD_IPV6, "fd00:10:128::1"))
        podlinks[1].append((POD_IPV6, "fd00:10:128:1::1"))
    for index, node in enumerate((node1, node2)):
        namespaces.connect(VethPair((control_plane, node), (node.label, "uplink"), tuple(uplinks[index])))
        namespaces.connect(VethPair((pod, node), (node.label, "pods"), tuple(podlinks[index])))
    nodes = tuple(
        # The last address pair: with IPv6, node2 dials the server over IPv6.
        DemoNode(context.label, context, ups[-1][0], tuple(seen for _, seen in pods), 8135, 8136)
        for context, ups, pods in zip((node1, node2), uplinks, podlinks, strict=True)
    )
    return DemoEnvironment(
        control_plane=control_plane,
        nodes=(nodes[0], nodes[1]),
        pod=pod,
        pod_addresses=(POD_IPV4, POD_IPV6) if ipv6 else (POD_IPV4,),
        pod_port=8443,
        server_bind="",
        agent_port=8132,
        health_port=8133,
        admin_port=8134,
    )


def on_loopback(ipv6: bool) -> DemoEnvironment:
    here = NetworkContext("this machine")
    ports = iter(free_ports(8))
    nodes = tuple(
        DemoNode(name, here, "127.0.0.1", (), next(ports), next(ports)) for name in ("node1", "node2")
    )
    return DemoEnvironment(
        control_plane=here,
        nodes=(nodes[0], nodes[1]),
        pod=here,
        pod_addresses=("127.0.0.1", "::1") if ipv6 else ("127.0.0.1",),
        pod_port=next(ports),
        server_bind="127.0.0.1",
        agent_port=next(ports),
        health_port=next(ports),
        admin_port=next(ports),
    )


def free_ports(count: int) -> list[int]:
    """Returns unused ports below the ephemeral range, from which outgoing connections take theirs."""
    candidates = random.sample(range(15000, 32000), 50 * count)
    found: list[int] = []
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"fewer than {count} free ports between 15000 and 32000 on 127.0.0.1")


def endpoint(host: str, port: int) -> str:
    """Returns `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def create_environment(namespaces: DemoNamespaces, *, loopback_reason: str) -> tuple[DemoEnvironment, str]:
    """Creates namespaces where possible, else uses loopback and returns the reason for that."""
    ipv6 = ipv6_works()
    reason = loopback_reason or namespaces_unavailable_reason()
    if not reason:
        # A kernel may support IPv6 on loopback and still reject it on new links.
        for with_ipv6 in sorted({ipv6, False}, reverse=True):
            try:
                return in_namespaces(namespaces, with_ipv6), ""
            except NamespacesUnavailable as error:
                namespaces.remove()
                reason = f"network namespaces unavailable: {error}"
    return on_loopback(ipv6), reason
