"""The lab's machine network: a Linux bridge in a namespace of its own, and one veth pair per node.

The network of this machine is never changed. Cluster nodes have routes to each other's pods. The bootstrap
node has none, which is the situation that the tunnel exists for.
"""

from __future__ import annotations

from pathlib import Path

from bootbridge.bootstrap.plan.plan import IPAddress, IPNetwork
from bootbridge.errors import OperatorError
from bootbridge.lab.layout import LabNode, Layout
from bootbridge.lab.namespaces import NodeNamespaces

BRIDGE = "machines"
DEVICE = "eth0"
IPV6 = Path("/proc/sys/net/ipv6")
FORWARDING = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}


def check_ipv6(layout: Layout) -> None:
    """Raises OperatorError if the layout needs IPv6 and the kernel has none."""
    if not IPV6.exists() and any(network.version == 6 for network in layout.networks.machine):
        hint = "use --ip ipv4, or boot this machine without ipv6.disable=1"
        raise OperatorError("IPv6 is disabled in this machine's kernel", subject="--ip", hint=hint)


def build_switch(switch: NodeNamespaces) -> None:
    _ip(switch, f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up")


def add_operator_addresses(switch: NodeNamespaces, layout: Layout) -> None:
    """Gives the switch addresses on the machine network, so that `node init` can run in its namespace."""
    addresses = zip(layout.operator_addresses, layout.networks.machine, strict=True)
    _ip(switch, *(_address("replace", address, network.prefixlen, BRIDGE) for address, network in addresses))


def connect_node(switch: NodeNamespaces, node: NodeNamespaces, layout_node: LabNode, layout: Layout) -> None:
    """Connects a node to the switch and sets its addresses."""
    port = _port(layout_node.name)
    _ip(
        switch,
        f"link add {port} type veth peer name {DEVICE} netns {node.pid}",
        f"link set {port} master {BRIDGE} up",
    )
    addresses = zip(layout_node.addresses, layout.networks.machine, strict=True)
    _ip(
        node,
        f"link set {DEVICE} up",
        *(_address("add", address, network.prefixlen) for address, network in addresses),
    )


def add_pod_routes(node: NodeNamespaces, layout_node: LabNode, layout: Layout) -> None:
    """Adds routes to the pods of all other cluster nodes.

    Packets from a pod to anywhere else leave with the node's address, as with common network plugins. The
    bootstrap node has no route back to a pod address.
    """
    for network in layout.networks.cluster:
        enable_forwarding(node, network.cidr.version)
        masquerade(node, network.cidr)
    routes = [
        f"route replace {subnet} via {gateway}"
        for other in layout.cluster_nodes
        if other != layout_node
        for subnet, gateway in zip(other.pod_subnets, other.addresses, strict=True)
    ]
    _ip(node, *routes)


def enable_forwarding(node: NodeNamespaces, version: int) -> None:
    """Enables IP forwarding for one family; the kernel may lack the other."""
    node.run_checked("sh", "-c", f"echo 1 > /proc/sys/{FORWARDING[version]}")


def masquerade(node: NodeNamespaces, pods: IPNetwork) -> None:
    program = "iptables" if pods.version == 4 else "ip6tables"
    rule = ("-s", str(pods), "!", "-d", str(pods), "-j", "MASQUERADE")
    node.run_checked(program, "-w", "-t", "nat", "-A", "POSTROUTING", *rule)


def change_address(node: NodeNamespaces, old: IPAddress, new: IPAddress, prefix: int) -> None:
    """Replaces an address; the old one first, because deleting it would delete the new one as a secondary."""
    _ip(node, f"address del {old}/{prefix} dev {DEVICE}", _address("add", new, prefix))


def forward_port(
    switch: NodeNamespaces, node: NodeNamespaces, at: tuple[IPAddress, IPNetwork], to: IPAddress, port: int
) -> None:
    """Adds an address to the switch and forwards one TCP port of it to a node, as a load balancer does."""
    address, network = at
    enable_forwarding(switch, address.version)
    _ip(switch, _address("replace", address, network.prefixlen, BRIDGE))
    program, host = ("iptables", str(to)) if to.version == 4 else ("ip6tables", f"[{to}]")
    nat = (program, "-w", "-t", "nat", "-A")
    match = ("-p", "tcp", "--dport", str(port))
    redirect = ("-d", str(address), *match, "-j", "DNAT", "--to-destination", host)
    switch.run_checked(*nat, "PREROUTING", *redirect)
    # With the switch's address as source, so that replies return through the switch.
    switch.run_checked(*nat, "POSTROUTING", "-d", str(to), *match, "-j", "MASQUERADE")
    # The node's own packets to that address would return with its own source address and be dropped.
    node.run_checked(*nat, "OUTPUT", *redirect)


def flush_neighbours(node: NodeNamespaces) -> None:
    """Empties the ARP and NDP caches."""
    _ip(node, f"neighbour flush dev {DEVICE}")


def disconnect(switch: NodeNamespaces, node: str) -> None:
    """Sets the switch's end of a node's link down; the node itself sees no error."""
    _ip(switch, f"link set {_port(node)} down")


def reconnect(switch: NodeNamespaces, node: str) -> None:
    _ip(switch, f"link set {_port(node)} up")


def _port(node: str) -> str:
    return f"p-{node}"[:15]


def _address(verb: str, address: IPAddress, prefix: int, device: str = DEVICE) -> str:
    # Duplicate address detection would delay each IPv6 address by a second.
    nodad = " nodad" if address.version == 6 else ""
    return f"address {verb} {address}/{prefix} dev {device}{nodad}"


def _ip(node: NodeNamespaces, *commands: str) -> None:
    """Runs commands of `ip` as one batch."""
    batch = "".join(f"{each}\n" for each in commands).encode()
    node.run_checked("ip", "-batch", "-", network_only=True, input=batch)
