"""Decides which addresses may be dialled, after name resolution. The first rule that applies decides:

1. An address that `--deny-destinations` lists is refused.
2. An address in a range that is refused by default (loopback, link-local, metadata services, ...) is
   refused, unless a rule of `--allow-destinations` lists it and lies inside that range: `127.0.0.0/8`
   permits loopback, `0.0.0.0/0` does not.
3. If `--allow-destinations` is set, an address that it does not list is refused.
4. Everything else is permitted.

An IPv6 address that stands for an IPv4 address (mapped, NAT64, 6to4, ...) is also refused if rule 1 or 2
refuses the IPv4 address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network
from typing import Final

from bootbridge.errors import OperatorError
from bootbridge.wire.addresses import IPAddress, IPNetwork, parse_cidr, parse_ip

ALLOW_FLAG: Final = "--allow-destinations"
DENY_FLAG: Final = "--deny-destinations"
NOT_LISTED: Final = f"{ALLOW_FLAG} (not listed)"
PORT_MAX: Final = 65535
_HINT: Final = "for example 10.0.0.0/8, 10.0.0.0/8:443 or [fd00::/8]:1-1024"
# Frontends choose the addresses, so the number of cached decisions is bounded.
_DECISIONS_MAX: Final = 1024

# The first that includes an address names the refusal.
_BY_DEFAULT: Final = (
    ("unspecified", "0.0.0.0/8"),  # Linux connects 0.0.0.0 to loopback
    ("unspecified", "::/128"),
    ("loopback", "127.0.0.0/8"),
    ("loopback", "::1/128"),
    ("link-local", "169.254.0.0/16"),  # metadata services of most clouds are at 169.254.169.254
    ("link-local", "fe80::/10"),
    ("multicast", "224.0.0.0/4"),
    ("multicast", "ff00::/8"),
    ("broadcast", "255.255.255.255/32"),
    ("metadata", "168.63.129.16/32"),  # Azure
    ("metadata", "100.100.100.200/32"),  # Alibaba
    ("metadata", "192.0.0.192/32"),  # Oracle
    ("metadata", "fd00:ec2::/32"),  # AWS: ::23 pod identity, ::254 instance metadata, DNS and time
    ("metadata", "fd20:ce::254/128"),  # Google
    ("metadata", "fd00:c1::a9fe:a9fe/128"),  # Oracle
    ("metadata", "fd00:42::42/128"),  # Scaleway
)
DEFAULT_REFUSALS: Final[tuple[tuple[str, IPNetwork], ...]] = tuple(
    (kind, ip_network(text)) for kind, text in _BY_DEFAULT
)
# Prefixes of 96 bits that an IPv4 address follows: compatible, translated, NAT64 (RFC 6052).
_EMBEDDING: Final = tuple(IPv6Network(text) for text in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96"))
# NAT64 prefixes of 48 to 96 bits that a network chooses itself (RFC 8215), and where RFC 6052 then puts the
# bytes of the IPv4 address.
_LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
_LOCAL_NAT64_BYTES: Final = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))
_NOT_EMBEDDED: Final = (IPv6Address("::"), IPv6Address("::1"))


@dataclass(frozen=True, slots=True)
class DestinationRule:
    """Addresses, and the ports on them; `text` is what the operator wrote."""

    network: IPNetwork
    first_port: int
    last_port: int
    text: str

    def lists(self, ip: IPAddress, port: int) -> bool:
        return ip in self.network and self.first_port <= port <= self.last_port


def parse_rules(texts: Sequence[str], flag: str) -> tuple[DestinationRule, ...]:
    """Parses `CIDR`, `CIDR:PORTS` and `[CIDR]:PORTS`; raises OperatorError that names the flag."""
    return tuple(_parse(text.strip(), flag) for text in texts)


def _parse(text: str, flag: str) -> DestinationRule:
    cidr, ports = _split(text)
    network = parse_cidr(cidr)
    if network is None:
        raise OperatorError(f"invalid destination {text!r}", subject=flag, hint=_HINT)
    if parse_ip(cidr.partition("/")[0]) != network.network_address:
        hint = f"for the whole network write {network}"
        raise OperatorError(f"invalid destination {text!r}: host bits set", subject=flag, hint=hint)
    first, dash, last = ports.partition("-")
    bounds = (first, last if dash else first)
    if not all(each.isascii() and each.isdigit() and len(each) <= 5 for each in bounds):
        raise OperatorError(f"invalid ports in destination {text!r}", subject=flag, hint=_HINT)
    low, high = map(int, bounds)
    if not 1 <= low <= high <= PORT_MAX:
        hint = f"ports from 1 to {PORT_MAX}, the lower one first"
        raise OperatorError(f"invalid ports in destination {text!r}", subject=flag, hint=hint)
    return DestinationRule(network, low, high, text)


def _split(text: str) -> tuple[str, str]:
    """Returns CIDR and ports; all ports if none are given. An IPv6 network with ports needs brackets."""
    if text.startswith("["):
        cidr, found, ports = text[1:].partition("]:")
        return (cidr, ports) if found else (text, "")
    if text.count(":") > 1 or ":" not in text:
        return text, f"1-{PORT_MAX}"
    cidr, _, ports = text.partition(":")
    return cidr, ports


class DestinationPolicy:
    """All rules of one program, parsed once. `refused_by` is called for each dialled address."""

    def __init__(self, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        self._allow = parse_rules(allow, ALLOW_FLAG)
        self._deny = parse_rules(deny, DENY_FLAG)
        self.refused_by = lru_cache(maxsize=_DECISIONS_MAX)(self._decide)

    def _decide(self, host: str, port: int) -> str:
        """Returns the rule that refuses this IP address and port; empty if they are permitted."""
        ip = parse_ip(host.partition("%")[0])
        if ip is None:
            return NOT_LISTED
        forms = (ip, *_embedded(ip))
        for each in forms:
            for rule in self._deny:
                if rule.lists(each, port):
                    return f"{DENY_FLAG}={rule.text}"
        for each in forms:
            if refused := self._refused_by_default(each, port):
                return refused
        if self._allow and not any(rule.lists(ip, port) for rule in self._allow):
            return NOT_LISTED
        return ""

    def _refused_by_default(self, ip: IPAddress, port: int) -> str:
        for kind, network in DEFAULT_REFUSALS:
            if ip in network:
                permitted = any(
                    rule.lists(ip, port) and _lies_in(rule.network, network) for rule in self._allow
                )
                return "" if permitted else f"default rule {kind} {network}"
        return ""


def refused_range(network: IPNetwork) -> IPNetwork | None:
    """Returns the range that is refused by default and includes all of `network`, if there is one."""
    return next((refused for _, refused in DEFAULT_REFUSALS if _lies_in(network, refused)), None)


def _lies_in(network: IPNetwork, other: IPNetwork) -> bool:
    return network.version == other.version and network.subnet_of(other)  # type: ignore[arg-type]


def _embedded(ip: IPAddress) -> Iterator[IPv4Address]:
    """Yields the IPv4 addresses that an IPv6 address stands for; a mapped one is parsed as IPv4 already."""
    if not isinstance(ip, IPv6Address) or ip in _NOT_EMBEDDED:
        return
    if any(ip in prefix for prefix in _EMBEDDING):
        yield IPv4Address(int(ip) & 0xFFFFFFFF)
    if ip in _LOCAL_NAT64:
        found = [IPv4Address(bytes(ip.packed[at] for at in places)) for places in _LOCAL_NAT64_BYTES]
        # The bytes of the other forms are often zero, and 0.0.0.0/8 is refused.
        yield from [each for each in found if each.packed[0]] or found[-1:]
    if ip.sixtofour is not None:
        yield ip.sixtofour
    if ip.teredo is not None:
        yield from ip.teredo
