"""Which identifiers the server accepts from an agent: a pure value, and its comparison with a claim.

An agent receives the dials for what it advertises, so an identifier that it may not advertise is ignored.
What is allowed comes from flags, or from what the agent proves about its node (a certificate, a token).
"""

from __future__ import annotations

from dataclasses import dataclass

from bootbridge.tunnel.identifiers import AgentIdentifiers
from bootbridge.wire.addresses import IPAddress, IPNetwork, comparable_host, parse_cidr, parse_ip

ANY_NAME = "*"
_WILDCARD = "*."


@dataclass(frozen=True)
class AllowedIdentifiers:
    """Allowed networks (with all addresses and networks inside), host names, and the default route.

    ``*.example.com`` allows every name that ends with ``.example.com``, and ``*`` every name. A name never
    allows an address.
    """

    networks: tuple[IPNetwork, ...] = ()
    hosts: tuple[str, ...] = ()  # as ``comparable_host`` returns them
    default_route: bool = False

    def allows_host(self, host: str) -> bool:
        """Whether an agent may advertise this name or address."""
        ip = parse_ip(host)
        if ip is not None:
            return self._contains_address(ip)
        name = host.lower()
        return any(
            name.endswith(allowed[1:]) if allowed.startswith(_WILDCARD) else allowed in (name, ANY_NAME)
            for allowed in self.hosts
        )

    def allows_cidr(self, text: str) -> bool:
        """Whether an agent may advertise this network. An invalid one is allowed: it matches nothing."""
        network = parse_cidr(text)
        return network is None or any(_contains(allowed, network) for allowed in self.networks)

    def _contains_address(self, ip: IPAddress) -> bool:
        return any(ip in network for network in self.networks if network.version == ip.version)


@dataclass(frozen=True)
class AdmittedIdentifiers:
    """The identifiers that count, and those that are ignored, as ``key=value``."""

    identifiers: AgentIdentifiers
    ignored: tuple[str, ...] = ()


def admit(claimed: AgentIdentifiers, rules: tuple[AllowedIdentifiers, ...]) -> AdmittedIdentifiers:
    """Returns what all rules allow; without a rule everything is allowed, as upstream does."""
    if not rules:
        return AdmittedIdentifiers(claimed)
    ignored: list[str] = []

    def allowed_hosts(key: str, hosts: tuple[str, ...]) -> tuple[str, ...]:
        kept = tuple(host for host in hosts if all(rule.allows_host(host) for rule in rules))
        ignored.extend(f"{key}={host}" for host in hosts if host not in kept)
        return kept

    ipv4 = allowed_hosts("ipv4", claimed.ipv4)
    ipv6 = allowed_hosts("ipv6", claimed.ipv6)
    host = allowed_hosts("host", claimed.host)
    cidr = tuple(text for text in claimed.cidr if all(rule.allows_cidr(text) for rule in rules))
    ignored.extend(f"cidr={text}" for text in claimed.cidr if text not in cidr)
    default_route = claimed.default_route and all(rule.default_route for rule in rules)
    if claimed.default_route and not default_route:
        ignored.append("default-route=true")
    return AdmittedIdentifiers(AgentIdentifiers(ipv4, ipv6, host, cidr, default_route), tuple(ignored))


def allowed_by_names(
    names: tuple[str, ...], *, networks: tuple[IPNetwork, ...] = (), default_route: bool
) -> AllowedIdentifiers:
    """Returns what names, addresses and networks allow together; an address allows itself only."""
    found, hosts = list(networks), []
    for name in names:
        ip = parse_ip(name)
        if ip is None:
            hosts.append(comparable_host(name))
        elif (network := parse_cidr(f"{ip}/{ip.max_prefixlen}")) is not None:
            found.append(network)
    return AllowedIdentifiers(tuple(found), tuple(hosts), default_route)


def _contains(outer: IPNetwork, inner: IPNetwork) -> bool:
    return (
        outer.version == inner.version
        and outer.prefixlen <= inner.prefixlen
        and inner.network_address in outer
    )
