"""Which of a node's addresses the agents dial: one per IP version of the cluster, the primary first.

What the operator says wins. Else the addresses inside the machine networks, else the source address
of the default route. Several inside the machine networks are narrowed down, each step only if it
leaves something: not a load balancer's virtual address; the default route's source; the default
route's interface. If that leaves more than one, the operator has to say which.

The generated shell decides by the same rules (shell/address.jq), and passes the same tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bootbridge.bootstrap.machine.network import NodeAddress, NodeNetwork
from bootbridge.bootstrap.plan.plan import IPAddress, IPNetwork
from bootbridge.errors import OperatorError

NODE_IP_HINT = "name it with --node-ip or OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP"


@dataclass(frozen=True)
class AddressCandidate:
    """What became of one address that was seen."""

    seen: NodeAddress
    chosen: bool
    why: str


@dataclass(frozen=True)
class AddressDecision:
    """The addresses, primary first, and how they were come by."""

    addresses: tuple[IPAddress, ...]
    reasons: tuple[str, ...]  # one per address
    candidates: tuple[AddressCandidate, ...]
    warnings: tuple[str, ...]


def choose(
    explicit: Sequence[IPAddress],
    machine_networks: Sequence[IPNetwork],
    seen: NodeNetwork,
    families: Sequence[int],
) -> tuple[IPAddress, ...]:
    """The addresses that go into the server's certificate; agents dial the first."""
    return decide(explicit, machine_networks, seen, families).addresses


def decide(
    explicit: Sequence[IPAddress],
    machine_networks: Sequence[IPNetwork],
    seen: NodeNetwork,
    families: Sequence[int],
) -> AddressDecision:
    """The same with reasons: why these, why not the others."""
    if explicit:
        return _as_said(tuple(dict.fromkeys(explicit)), seen, families)
    found = {version: _find(version, machine_networks, seen) for version in families}
    chosen = [(version, *pick) for version, pick in found.items() if pick]
    if not chosen:
        raise _no_candidate(machine_networks, seen, families)
    warnings = [
        f"no IPv{version} address was found: agents can dial the other one only"
        for version, pick in found.items()
        if not pick
    ]
    addresses = tuple(address for _, address, _ in chosen)
    return AddressDecision(
        addresses,
        tuple(reason for _, _, reason in chosen),
        tuple(_verdict(each, addresses, machine_networks, families) for each in seen.addresses),
        tuple(warnings),
    )


def _as_said(addresses: tuple[IPAddress, ...], seen: NodeNetwork, families: Sequence[int]) -> AddressDecision:
    here = {each.address for each in seen.addresses}
    warnings = [f"{each} is on no interface of this node" for each in addresses if each not in here]
    warnings += [
        f"{each} is IPv{each.version}, which the cluster does not use"
        for each in addresses
        if each.version not in families
    ]
    candidates = (
        AddressCandidate(each, each.address in addresses, "said" if each.address in addresses else "not said")
        for each in seen.addresses
    )
    return AddressDecision(
        addresses, ("said by the operator",) * len(addresses), tuple(candidates), tuple(warnings)
    )


def _find(
    version: int, machine_networks: Sequence[IPNetwork], seen: NodeNetwork
) -> tuple[IPAddress, str] | None:
    """The address of one IP version and the reason, or nothing."""
    usable = [each for each in seen.of(version) if not each.unusable]
    inside = [each for each in usable if _inside(each.address, machine_networks)]
    if inside:
        return _narrowed(version, inside, seen), "inside the machine networks"
    route = seen.default_routes.get(version)
    if route is None:
        return None
    if any(each.address == route.source for each in usable):
        assert route.source is not None
        return route.source, "source of the default route"
    # The kernel's source can be one that does not last, such as a temporary IPv6 address.
    beside = [each for each in usable if each.interface == route.interface]
    return (_narrowed(version, beside, seen), "on the default route's interface") if beside else None


def _narrowed(version: int, candidates: list[NodeAddress], seen: NodeNetwork) -> IPAddress:
    route = seen.default_routes.get(version)
    steps: list[Callable[[NodeAddress], bool]] = [lambda each: not each.looks_virtual]
    if route is not None:
        steps += [
            lambda each: each.address == route.source,
            lambda each: each.interface == route.interface,
        ]
    for keep in steps:
        candidates = [each for each in candidates if keep(each)] or candidates
    distinct = list(dict.fromkeys(each.address for each in candidates))
    if len(distinct) > 1:
        listed = ", ".join(map(str, candidates))
        text = f"several IPv{version} addresses could be the node's: {listed}"
        raise OperatorError(text, subject="--node-ip", hint=NODE_IP_HINT)
    return distinct[0]


def _verdict(
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
        return AddressCandidate(each, False, f"the cluster does not use IPv{each.address.version}")
    if not _inside(each.address, machine_networks):
        return AddressCandidate(each, False, "outside the machine networks")
    why = "looks virtual" if each.looks_virtual else "not where the default route leaves"
    return AddressCandidate(each, False, why)


def _no_candidate(
    machine_networks: Sequence[IPNetwork], seen: NodeNetwork, families: Sequence[int]
) -> OperatorError:
    versions = " or ".join(f"IPv{version}" for version in families)
    listed = ", ".join(f"{each}{_aside(each.unusable)}" for each in seen.addresses) or "no address at all"
    routes = ", ".join(f"IPv{version}" for version in sorted(seen.default_routes)) or "none"
    networks = ", ".join(map(str, machine_networks))
    text = (
        f"no {versions} address of this node lies inside the machine networks ({networks}) or is the source "
        f"of a default route; seen: {listed}; default routes: {routes}"
    )
    return OperatorError(text, subject="--node-ip", hint=NODE_IP_HINT)


def _aside(text: str) -> str:
    return f" ({text})" if text else ""


def _inside(address: IPAddress, networks: Sequence[IPNetwork]) -> bool:
    return any(address in network for network in networks)
