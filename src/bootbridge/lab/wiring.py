"""The machine network: a switch in a namespace of its own, and a cable from each node to it.

This machine's own network is never touched. Cluster nodes know the way to each other's pods;
the bootstrap node does not, which is the whole point.
"""

from __future__ import annotations

from bootbridge.bootstrap.plan import IPNetwork
from bootbridge.lab.layout import LabNode, Layout
from bootbridge.lab.space import Space

BRIDGE = "machines"
DEVICE = "eth0"


def build_switch(switch: Space) -> None:
    _in(switch, "link", "add", BRIDGE, "type", "bridge")
    _in(switch, "link", "set", BRIDGE, "up")


def plug_in(switch: Space, space: Space, node: LabNode, layout: Layout) -> None:
    """Connect a node; duplicate address detection would only cost its second."""
    port = f"p-{node.name}"[:15]
    peer = ("peer", "name", DEVICE, "netns", str(space.pid))
    _in(switch, "link", "add", port, "type", "veth", *peer)
    _in(switch, "link", "set", port, "master", BRIDGE, "up")
    _in(space, "link", "set", DEVICE, "up")
    for address, network in zip(node.addresses, layout.networks.machine, strict=True):
        nodad = ("nodad",) if address.version == 6 else ()
        _in(space, "address", "add", f"{address}/{network.prefixlen}", "dev", DEVICE, *nodad)


def teach_pod_routes(spaces: dict[str, Space], layout: Layout) -> None:
    """Every cluster node reaches the pods of every other by way of it.

    What a pod sends elsewhere leaves in its node's name, as with every network plugin in life: the
    bootstrap node could not answer a pod.
    """
    for node in layout.cluster_nodes:
        forward(spaces[node.name])
        for network in layout.networks.cluster:
            masquerade(spaces[node.name], network.cidr)
        for other in layout.cluster_nodes:
            if other is not node:
                for subnet, gateway in zip(other.pod_subnets, other.addresses, strict=True):
                    _in(spaces[node.name], "route", "replace", str(subnet), "via", str(gateway))


def forward(space: Space) -> None:
    for name in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
        space.must("sh", "-c", f"echo 1 > /proc/sys/{name}")


def masquerade(space: Space, pods: IPNetwork) -> None:
    program = "iptables" if pods.version == 4 else "ip6tables"
    rule = ("-s", str(pods), "!", "-d", str(pods), "-j", "MASQUERADE")
    space.must(program, "-w", "-t", "nat", "-A", "POSTROUTING", *rule)


def cut(switch: Space, node: str) -> None:
    """Pull the plug: nothing arrives any more, and nobody is told."""
    _in(switch, "link", "set", f"p-{node}"[:15], "down")


def mend(switch: Space, node: str) -> None:
    _in(switch, "link", "set", f"p-{node}"[:15], "up")


def _in(space: Space, *words: str) -> None:
    space.must("ip", *words, network_only=True)
