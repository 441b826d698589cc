"""Where everything stands: who runs in which place, under which addresses and ports."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

from bootbridge.demo.network import (
    Link,
    Namespaces,
    NamespacesRefused,
    Place,
    ipv6_works,
    why_no_namespaces,
)

POD_IPV4, POD_IPV6 = "10.128.2.5", "fd00:10:128:2::5"


@dataclass(frozen=True)
class Node:
    """A machine with an agent on it."""

    name: str
    place: Place
    # How this node reaches the control plane, and how the pod sees this node.
    server_host: str
    seen_as: tuple[str, ...]
    health_port: int
    admin_port: int


@dataclass(frozen=True)
class Site:
    """A control plane, two nodes and a pod."""

    control_plane: Place
    nodes: tuple[Node, Node]
    pod: Place
    pod_addresses: tuple[str, ...]
    pod_port: int
    server_bind: str
    agent_port: int
    health_port: int
    admin_port: int

    @property
    def isolated(self) -> bool:
        """Whether the control plane has no way to the pod but the tunnel."""
        return bool(self.control_plane.namespace)

    @property
    def server_hosts(self) -> list[str]:
        return sorted({node.server_host for node in self.nodes})

    def node_seen_as(self, address: str) -> Node | None:
        """Which node a connection came through, by the address that the pod saw."""
        return next((node for node in self.nodes if address in node.seen_as), None)


def namespaced(namespaces: Namespaces, ipv6: bool) -> Site:
    """A control plane cabled to two nodes, a pod cabled to the same two; nothing forwards between."""
    control_plane = namespaces.place("control-plane", "control plane")
    node1, node2 = namespaces.place("node1", "node1"), namespaces.place("node2", "node2")
    pod = namespaces.place("pod", "pod")
    uplinks = [[("192.0.2.1", "192.0.2.11")], [("192.0.2.1", "192.0.2.12")]]
    podlinks = [[(POD_IPV4, "10.128.0.1")], [(POD_IPV4, "10.128.1.1")]]
    if ipv6:
        uplinks[1].append(("2001:db8::1", "2001:db8::12"))
        podlinks[0].append((POD_IPV6, "fd00:10:128::1"))
        podlinks[1].append((POD_IPV6, "fd00:10:128:1::1"))
    for index, node in enumerate((node1, node2)):
        namespaces.connect(Link((control_plane, node), (node.label, "uplink"), tuple(uplinks[index])))
        namespaces.connect(Link((pod, node), (node.label, "pods"), tuple(podlinks[index])))
    nodes = tuple(
        # The last address pair: node2 dials out over IPv6 where there is IPv6.
        Node(place.label, place, ups[-1][0], tuple(seen for _, seen in pods), 8135, 8136)
        for place, ups, pods in zip((node1, node2), uplinks, podlinks, strict=True)
    )
    return Site(
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


def loopback(ipv6: bool) -> Site:
    """Everything on this machine's loopback."""
    here = Place("this machine")
    ports = iter(free_ports(8))
    nodes = tuple(Node(name, here, "127.0.0.1", (), next(ports), next(ports)) for name in ("node1", "node2"))
    return Site(
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
    """Ports nobody listens on, from below the range that the kernel gives to outgoing connections."""
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
    """`host:port`, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def choose(namespaces: Namespaces, *, loopback_because: str) -> tuple[Site, str]:
    """The best site this machine allows; where it is loopback, the reason for that comes with it."""
    ipv6 = ipv6_works()
    reason = loopback_because or why_no_namespaces()
    if not reason:
        # A kernel may speak IPv6 on loopback and still refuse it on new links.
        for with_ipv6 in sorted({ipv6, False}, reverse=True):
            try:
                return namespaced(namespaces, with_ipv6), ""
            except NamespacesRefused as refusal:
                namespaces.remove()
                reason = f"no network namespaces here: {refusal}"
    return loopback(ipv6), reason
