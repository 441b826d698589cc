"""Parses host:port, IP addresses and CIDRs, and compares hosts.

Frontends send ``host:port``; agents advertise hosts without a port. ``host_of`` is lenient because it
only selects an agent. ``split_host_port`` is strict because its result is dialled; its error texts are
Go's, since they are sent to Go peers.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

_MAPPED_PREFIX_BITS = 96  # ::ffff:0:0/96 holds the IPv4 addresses
# A name has at most 255. Queues are bounded in packets, so the size of a packet must be bounded too:
# dials with long addresses, and errors that repeat them, could have megabytes each.
ADDRESS_CHARS_MAX = 512
TOO_LONG_TEXT = f"address: more than {ADDRESS_CHARS_MAX} characters"
_IP_CHARS_MAX = 128  # the longest IPv6 spelling has 45, and a zone may follow


def host_of(address: str) -> str:
    """Returns the host in ``address``, with or without a port."""
    if address.count(":") <= 1:
        return address.partition(":")[0].strip("[]")
    if "[" in address and not address.endswith("]"):
        address = address.rpartition(":")[0]
    return address.strip("[]")


def source_of(address: str) -> str:
    """Returns what limits are counted by: an IPv4 address or an IPv6 /64, which one machine may own."""
    ip = parse_ip(address.partition("%")[0])
    if ip is None:
        return address
    return str(IPv6Address(int(ip) >> 64 << 64) if isinstance(ip, IPv6Address) else ip)


def peer_address(host: str, port: int) -> str:
    """Returns address and port of a peer; an IPv4 peer of an IPv6 socket is shown as IPv4."""
    mapped = host.removeprefix("::ffff:")
    return join_host_port(host if ":" in mapped else mapped, port)


def parse_ip(host: str) -> IPAddress | None:
    """Parses an IP address, an IPv4-mapped one as IPv4; None for a name."""
    return _parse_ip(host) if len(host) <= _IP_CHARS_MAX else None


@lru_cache(maxsize=1024)  # dials repeat the same few addresses
def _parse_ip(host: str) -> IPAddress | None:
    try:
        ip = ip_address(host)
    except ValueError:
        return None
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip


def parse_cidr(text: str) -> IPNetwork | None:
    """Parses ``address/bits``, with host bits cleared; None if it is invalid."""
    host, slash, bits = text.partition("/")
    if not slash or not bits.isascii() or not bits.isdigit() or len(bits) > 3 or "%" in host:
        return None
    try:
        ip, length = ip_address(host), int(bits)
        if isinstance(ip, IPv4Address):
            return IPv4Network((ip, length), strict=False)
        if ip.ipv4_mapped is not None and length >= _MAPPED_PREFIX_BITS:
            return IPv4Network((ip.ipv4_mapped, length - _MAPPED_PREFIX_BITS), strict=False)
        return IPv6Network((ip, length), strict=False)
    except ValueError:
        return None


def comparable_host(host: str) -> str:
    """Normalises a host for comparison: ``0:0::1`` is ``::1``, names are lower case."""
    ip = parse_ip(host)
    return host.lower() if ip is None else str(ip)


def split_host_port(address: str) -> tuple[str, int]:
    """Splits an address to dial. Raises ValueError with Go's error text."""
    host, port = _split(address)
    if not host:
        raise ValueError(f"address {address}: missing host in address")
    if not port.isascii() or not port.isdigit():
        raise ValueError(f"address tcp/{port}: unknown port")
    if len(port) > 5 or not 1 <= int(port) <= 65535:
        raise ValueError(f"address {port}: invalid port")
    return host, int(port)


def _split(address: str) -> tuple[str, str]:
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket:
            raise ValueError(f"address {address}: missing ']' in address")
    else:
        host, colon, port = address.partition(":")
        rest = colon + port
    if not rest.startswith(":"):
        raise ValueError(f"address {address}: missing port in address")
    if ":" in rest[1:]:
        raise ValueError(f"address {address}: too many colons in address")
    for bracket in "[]":
        if bracket in host or bracket in rest:
            raise ValueError(f"address {address}: unexpected '{bracket}' in address")
    return host, rest[1:]


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
