"""The machine network: a switch in a namespace of its own, and a cable from each node to it.

This machine's own network is never touched. Cluster nodes know the way to each other's pods;
the bootstrap node does not, which is the whole point.
"""

from __future__ import annotations

from pathlib import Path

from bootbridge.bootstrap.plan.plan import IPAddress, IPNetwork
from bootbridge.errors import OperatorError
from bootbridge.lab.layout import LabNode, Layout
from bootbridge.lab.namespaces import Space

BRIDGE = "machines"
DEVICE = "eth0"
IPV6 = Path("/proc/sys/net/ipv6")
FORWARDING = {4: "net/ipv4/ip_forward", 6: "net/ipv6/conf/all/forwarding"}


def build_switch(switch: Space) -> None:
    _in(switch, f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up")


def seat_operator(switch: Space, layout: Layout) -> None:
    """The switch's own network is one from which the instances can be called."""
    places = zip(layout.operator_addresses, layout.networks.machine, strict=True)
    _in(switch, *(_address("replace", address, network.prefixlen, BRIDGE) for address, network in places))


def plug_in(switch: Space, space: Space, node: LabNode, layout: Layout) -> None:
    """Connect a node; duplicate address detection would only cost its second."""
    port = _port(node.name)
    _in(
        switch,
        f"link add {port} type veth peer name {DEVICE} netns {space.pid}",
        f"link set {port} master {BRIDGE} up",
    )
    addresses = zip(node.addresses, layout.networks.machine, strict=True)
    _in(
        space,
        f"link set {DEVICE} up",
        *(_address("add", address, network.prefixlen) for address, network in addresses),
    )


def teach_pod_routes(space: Space, node: LabNode, layout: Layout) -> None:
    """A cluster node reaches the pods of every other by way of it.

    What a pod sends elsewhere leaves in its node's name, as with every network plugin in life: the
    bootstrap node could not answer a pod.
    """
    for network in layout.networks.cluster:
        forward(space, network.cidr.version)
        masquerade(space, network.cidr)
    ways = [
        f"route replace {subnet} via {gateway}"
        for other in layout.cluster_nodes
        if other != node
        for subnet, gateway in zip(other.pod_subnets, other.addresses, strict=True)
    ]
    _in(space, *ways)


def forward(space: Space, version: int) -> None:
    """Hand on packets of one family; this machine's kernel may not have the other."""
    space.must("sh", "-c", f"echo 1 > /proc/sys/{FORWARDING[version]}")


def refuse_if_unable(layout: Layout) -> None:
    """Said before anything is made: no address of a family can be given that the kernel does not know."""
    if not IPV6.exists() and any(network.version == 6 for network in layout.networks.machine):
        hint = "choose ipv4, or start this machine without ipv6.disable=1"
        raise OperatorError("this machine's kernel has no IPv6", subject="--ip", hint=hint)


def masquerade(space: Space, pods: IPNetwork) -> None:
    program = "iptables" if pods.version == 4 else "ip6tables"
    rule = ("-s", str(pods), "!", "-d", str(pods), "-j", "MASQUERADE")
    space.must(program, "-w", "-t", "nat", "-A", "POSTROUTING", *rule)


def change_address(space: Space, old: IPAddress, new: IPAddress, prefix: int) -> None:
    """The node is somewhere else from now on; the old address goes first, else the new one went with it."""
    _in(space, f"address del {old}/{prefix} dev {DEVICE}", _address("add", new, prefix))


def balance(switch: Space, node: Space, at: tuple[IPAddress, IPNetwork], to: IPAddress, port: int) -> None:
    """The switch answers at an address, and hands connections to a port there on to a node."""
    address, network = at
    forward(switch, address.version)
    _in(switch, _address("replace", address, network.prefixlen, BRIDGE))
    program, host = ("iptables", str(to)) if to.version == 4 else ("ip6tables", f"[{to}]")
    nat = (program, "-w", "-t", "nat", "-A")
    only = ("-p", "tcp", "--dport", str(port))
    hand_on = ("-d", str(address), *only, "-j", "DNAT", "--to-destination", host)
    switch.must(*nat, "PREROUTING", *hand_on)
    # In the switch's name, so that answers come back this way.
    switch.must(*nat, "POSTROUTING", "-d", str(to), *only, "-j", "MASQUERADE")
    # What the node itself sends there would come back to it from its own address: it need not leave.
    node.must(*nat, "OUTPUT", *hand_on)


def forget_neighbours(space: Space) -> None:
    """Ask anew who has which address."""
    _in(space, f"neighbour flush dev {DEVICE}")


def cut(switch: Space, node: str) -> None:
    """Pull the plug: nothing arrives any more, and nobody is told."""
    _in(switch, f"link set {_port(node)} down")


def mend(switch: Space, node: str) -> None:
    _in(switch, f"link set {_port(node)} up")


def _port(node: str) -> str:
    return f"p-{node}"[:15]


def _address(verb: str, address: IPAddress, prefix: int, device: str = DEVICE) -> str:
    nodad = " nodad" if address.version == 6 else ""
    return f"address {verb} {address}/{prefix} dev {device}{nodad}"


def _in(space: Space, *commands: str) -> None:
    """Commands of `ip`, all in one go."""
    space.must(
        *("ip", "-batch", "-"), network_only=True, input="".join(f"{each}\n" for each in commands).encode()
    )
