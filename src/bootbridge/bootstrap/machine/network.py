"""Reads this machine's addresses and default routes from iproute2.

`parse` converts the JSON output, `observe` runs `ip`. A route lookup sends nothing.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bootbridge.bootstrap.plan.plan import IPAddress
from bootbridge.errors import OperatorError

# Addresses outside every cluster, so that a lookup returns the default route.
OUTSIDE = {4: "1.1.1.1", 6: "2001:4860:4860::8888"}
_COMMAND_SECONDS = 10
_FLAGS = ("secondary", "dynamic", "deprecated", "temporary", "tentative", "dadfailed")


@dataclass(frozen=True)
class NodeAddress:
    """Holds an address on an interface. `flags` are those of iproute2."""

    interface: str
    address: IPAddress
    prefix_length: int
    scope: str = "global"
    flags: frozenset[str] = frozenset()
    link_up: bool = True

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix_length} on {self.interface}"

    @property
    def unusable(self) -> str:
        """Returns why agents cannot dial the address; empty if they can."""
        if self.address.is_loopback or self.scope == "host":
            return "local to this machine"
        if self.address.is_link_local or self.scope == "link":
            return "link-local"
        if not self.link_up:
            return "interface down"
        for flag in ("tentative", "dadfailed", "deprecated", "temporary"):
            if flag in self.flags:
                return flag
        return ""

    @property
    def looks_virtual(self) -> bool:
        """Returns whether a load balancer may have assigned it, so that it can move to another machine.

        DHCP also assigns /32 and /128, but marks them dynamic.
        """
        full_length = self.prefix_length == self.address.max_prefixlen and "dynamic" not in self.flags
        return full_length or "secondary" in self.flags

    @property
    def is_from_dhcpv6(self) -> bool:
        """Returns whether DHCPv6 assigned it: a prefix of 128 bits with a lifetime. SLAAC makes /64."""
        return self.address.version == 6 and self.prefix_length == 128 and "dynamic" in self.flags


@dataclass(frozen=True)
class DefaultRoute:
    """Holds the interface and the source address, if the kernel has one."""

    interface: str
    source: IPAddress | None


@dataclass(frozen=True)
class NodeNetwork:
    """Holds all addresses in the kernel's order, and the default route of each IP version that has one."""

    addresses: tuple[NodeAddress, ...] = ()
    default_routes: Mapping[int, DefaultRoute] = field(default_factory=dict)

    def of(self, version: int) -> Iterator[NodeAddress]:
        return (each for each in self.addresses if each.address.version == version)


def observe() -> NodeNetwork:
    """Returns this machine's network. Raises OperatorError if `ip` fails."""
    shown = _ip("addr", "show")
    if shown.returncode:
        raise OperatorError(f"ip -j addr show failed: {shown.stderr.strip()}", hint=_HINT)
    return parse(shown.stdout, {version: _route(version) for version in OUTSIDE})


def parse(addresses: str, routes: Mapping[int, str]) -> NodeNetwork:
    """Parses `ip -j addr show`, and `ip -j route get` per IP version (empty: no route)."""
    try:
        links = json.loads(addresses)
        found = tuple(each for link in links for each in _addresses(link))
        looked_up = {version: _default_route(text) for version, text in routes.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise OperatorError(f"invalid output of ip -j: {error!r}", hint=_HINT) from error
    return NodeNetwork(found, {version: route for version, route in looked_up.items() if route})


_HINT = "give the node's address with --node-ip"


def _route(version: int) -> str:
    got = _ip(f"-{version}", "route", "get", OUTSIDE[version])
    return "" if got.returncode else got.stdout


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["ip", "-j", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except FileNotFoundError:
        raise OperatorError("command not found: ip", hint=f"install iproute2, or {_HINT}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatorError(f"{' '.join(command)} failed: {error}", hint=_HINT) from error


def _addresses(link: dict[str, Any]) -> Iterator[NodeAddress]:
    flags = link.get("flags", [])
    for entry in link.get("addr_info", []):
        if "local" not in entry:  # iproute2 prints an empty object for an address that it filtered out
            continue
        yield NodeAddress(
            interface=link["ifname"],
            address=ipaddress.ip_address(entry["local"]),
            prefix_length=int(entry["prefixlen"]),
            scope=str(entry.get("scope", "global")),
            flags=frozenset(flag for flag in _FLAGS if entry.get(flag)),
            link_up="UP" in flags and "NO-CARRIER" not in flags,
        )


def _default_route(text: str) -> DefaultRoute | None:
    routes = json.loads(text) if text.strip() else []
    if not routes or "dev" not in routes[0]:
        return None
    source = routes[0].get("prefsrc")
    return DefaultRoute(routes[0]["dev"], ipaddress.ip_address(source) if source else None)
