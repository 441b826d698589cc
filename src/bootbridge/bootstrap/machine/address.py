"""Selects the node's addresses that agents dial: one per IP version of the cluster, the primary one first.

1. The addresses given by the operator.
2. Otherwise the address inside the machine networks. If there are several, three filters apply in this order,
   each unless it would leave none: not a load balancer's virtual address; the default route's source address;
   on the default route's interface. If IPv6 addresses of one interface are left, the one from DHCPv6
   (dynamic, /128) is preferred to those that the machine made itself (SLAAC), because the network's operator
   assigned it. If more than one is left then, the operator must give the address.
3. Otherwise the source address of the default route.

The generated shell applies the same rules (shell/address.jq) and passes the same tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bootbridge.bootstrap.machine.network import NodeAddress, NodeNetwork
from bootbridge.bootstrap.plan.plan import IPAddress, IPNetwork
from bootbridge.errors import OperatorError

NODE_IP_HINT = "give it with --node-ip or OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP"


@dataclass(frozen=True)
class AddressCandidate:
    """Holds one address of the node, and why it was chosen or not."""

    found: NodeAddress
    chosen: bool
    reason: str


@dataclass(frozen=True)
class AddressDecision:
    """Holds the chosen addresses, the primary one first, and the reasons."""

    addresses: tuple[IPAddress, ...]
    reasons: tuple[str, ...]  # one per address
    candidates: tuple[AddressCandidate, ...]
    warnings: tuple[str, ...]


def choose(
    explicit: Sequence[IPAddress],
    machine_networks: Sequence[IPNetwork],
    network: NodeNetwork,
    families: Sequence[int],
) -> tuple[IPAddress, ...]:
    """Returns the addresses for the server's certificate. Agents dial the first one."""
    return decide(explicit, machine_networks, network, families).addresses


def decide(
    explicit: Sequence[IPAddress],
    machine_networks: Sequence[IPNetwork],
    network: NodeNetwork,
    families: Sequence[int],
) -> AddressDecision:
    """Returns the same addresses, with the reason for every address of the node."""
    if explicit:
        return _as_given(tuple(dict.fromkeys(explicit)), network, families)
    found = {version: _find(version, machine_networks, network) for version in families}
    chosen = [(version, *pick) for version, pick in found.items() if pick]
    if not chosen:
        raise _no_candidate(machine_networks, network, families)
    warnings = [
        f"no IPv{version} address found: agents can dial only the other IP version"
        for version, pick in found.items()
        if not pick
    ]
    addresses = tuple(address for _, address, _ in chosen)
    return AddressDecision(
        addresses,
        tuple(reason for _, _, reason in chosen),
        tuple(_candidate(each, addresses, machine_networks, families) for each in network.addresses),
        tuple(warnings),
    )


def _as_given(
    addresses: tuple[IPAddress, ...], network: NodeNetwork, families: Sequence[int]
) -> AddressDecision:
    here = {each.address for each in network.addresses}
    warnings = [f"address not found on any interface: {each}" for each in addresses if each not in here]
    warnings += [
        f"IPv{each.version} is not used by the cluster: {each}"
        for each in addresses
        if each.version not in families
    ]
    candidates = (
        AddressCandidate(
            each, each.address in addresses, "given" if each.address in addresses else "not given"
        )
        for each in network.addresses
    )
    return AddressDecision(
        addresses, ("given by the operator",) * len(addresses), tuple(candidates), tuple(warnings)
    )


def _find(
    version: int, machine_networks: Sequence[IPNetwork], network: NodeNetwork
) -> tuple[IPAddress, str] | None:
    """Returns the address of one IP version and the reason, or None."""
    usable = [each for each in network.of(version) if not each.unusable]
    inside = [each for each in usable if _inside(each.address, machine_networks)]
    if inside:
        return _narrowed(version, inside, network), "inside the machine networks"
    route = network.default_routes.get(version)
    if route is None:
        return None
    if any(each.address == route.source for each in usable):
        assert route.source is not None
        return route.source, "source of the default route"
    # The kernel may select a temporary IPv6 address as the source.
    beside = [each for each in usable if each.interface == route.interface]
    return (_narrowed(version, beside, network), "on the default route's interface") if beside else None


def _narrowed(version: int, candidates: list[NodeAddress], network: NodeNetwork) -> IPAddress:
    route = network.default_routes.get(version)
    steps: list[Callable[[NodeAddress], bool]] = [lambda each: not each.looks_virtual]
    if route is not None:
        steps += [
            lambda each: each.address == route.source,
            lambda each: each.interface == route.interface,
        ]
    for keep in steps:
        candidates = [each for each in candidates if keep(each)] or candidates
    if len({each.interface for each in candidates}) == 1:
        candidates = [each for each in candidates if each.is_from_dhcpv6] or candidates
    distinct = list(dict.fromkeys(each.address for each in candidates))
    if len(distinct) > 1:
        listed = ", ".join(map(str, candidates))
        text = f"ambiguous IPv{version} address: {listed}"
        raise OperatorError(text, subject="--node-ip", hint=NODE_IP_HINT)
    return distinct[0]


def _candidate(
    each: NodeAddress,
    chosen: Sequence[IPAddress],
    machine_networks: Sequence[IPNetwork],
    families: Sequence[int],
) -> AddressCandidate:
    if each.address in chosen:
        return AddressCandidate(each, True, "chosen")
    if each.unusable:
        return AddressCandidate(each, False, each.unusable)
    if each.address.version not in families:
        return AddressCandidate(each, False, f"IPv{each.address.version} is not used by the cluster")
    if not _inside(each.address, machine_networks):
        return AddressCandidate(each, False, "outside the machine networks")
    reason = "virtual address" if each.looks_virtual else "another address of this node is preferred"
    return AddressCandidate(each, False, reason)


def _no_candidate(
    machine_networks: Sequence[IPNetwork], network: NodeNetwork, families: Sequence[int]
) -> OperatorError:
    versions = " or ".join(f"IPv{version}" for version in families)
    listed = ", ".join(f"{each}{_in_brackets(each.unusable)}" for each in network.addresses) or "none"
    routes = ", ".join(f"IPv{version}" for version in sorted(network.default_routes)) or "none"
    networks = ", ".join(map(str, machine_networks))
    text = (
        f"no {versions} address inside the machine networks ({networks}) or at the source of a "
        f"default route; found: {listed}; default routes: {routes}"
    )
    return OperatorError(text, subject="--node-ip", hint=NODE_IP_HINT)


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _inside(address: IPAddress, networks: Sequence[IPNetwork]) -> bool:
    return any(address in network for network in networks)
