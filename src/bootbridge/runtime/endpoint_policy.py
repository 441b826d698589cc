"""Which endpoints can be dialled, and the error texts of failed dials.

Frontends request a protocol and an address. Only TCP is dialled: an unchecked protocol would let a
frontend reach unix sockets and UDP services of the agent's host. Invalid endpoints are rejected here,
before any resolver or socket sees them. `destination_policy` decides about the resolved addresses.

The texts are Go's, word for word: servers map them to HTTP statuses by substrings, and kube-apiserver
shows them to users.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from bootbridge.wire.addresses import join_host_port, parse_ip, split_host_port

_IP_VERSIONS = {"tcp": (4, 6), "tcp4": (4,), "tcp6": (6,)}

_NAME_CHARS_MAX = 253
_SHOWN_CHARS_MAX = 300  # of what a peer sent, in what we answer
_LABEL = r"[0-9A-Za-z_-]{1,63}"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_SCOPE = re.compile(r"[0-9A-Za-z._~-]+")

_CONNECT_ERRORS = {
    errno.ECONNREFUSED: "connect: connection refused",
    errno.ECONNRESET: "connect: connection reset by peer",
    errno.ECONNABORTED: "connect: software caused connection abort",
    errno.ETIMEDOUT: "connect: connection timed out",
    errno.ENETUNREACH: "connect: network is unreachable",
    errno.ENETDOWN: "connect: network is down",
    errno.EHOSTUNREACH: "connect: no route to host",
    errno.EHOSTDOWN: "connect: host is down",
    errno.EACCES: "connect: permission denied",
    errno.EPERM: "connect: operation not permitted",
    errno.EADDRNOTAVAIL: "connect: cannot assign requested address",
    errno.EADDRINUSE: "connect: address already in use",
    errno.EINVAL: "connect: invalid argument",
    errno.EMFILE: "socket: too many open files",
    errno.ENFILE: "socket: too many open files in system",
    errno.ENOBUFS: "socket: no buffer space available",
    errno.ENOMEM: "socket: cannot allocate memory",
    errno.EAFNOSUPPORT: "socket: address family not supported by protocol",
}


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """A TCP endpoint that may be dialled."""

    host: str
    port: int
    protocol: str = "tcp"

    @property
    def address(self) -> str:
        return join_host_port(self.host, self.port)

    @property
    def ip_versions(self) -> tuple[int, ...]:
        return _IP_VERSIONS[self.protocol]


@dataclass(frozen=True, slots=True)
class DialRejected:
    """An endpoint that must not or cannot be dialled; the frontend gets ``error``."""

    error: str


class LookupFailure(Enum):
    """Why a lookup found no address."""

    NOT_FOUND = "no such host"
    NO_ANSWER = "server misbehaving"
    TIMED_OUT = "i/o timeout"


def check_endpoint(protocol: str, address: str) -> TcpEndpoint | DialRejected:
    """Returns the requested endpoint, or why it is not dialled."""
    # Cached, because frontends dial few endpoints very often; overlong requests are not cached.
    return (_check_cached if len(protocol) + len(address) <= _SHOWN_CHARS_MAX else _check)(protocol, address)


def _check(protocol: str, address: str) -> TcpEndpoint | DialRejected:
    if protocol not in _IP_VERSIONS:
        shown = _shown(protocol)
        return DialRejected(f"dial {shown}: unknown network {shown}: agents dial tcp only")
    try:
        host, port = split_host_port(address)
    except ValueError as error:
        return DialRejected(f"dial {protocol}: {_shown(str(error))}")
    endpoint = TcpEndpoint(host, port, protocol)
    return _unreachable(endpoint) or endpoint


_check_cached = lru_cache(maxsize=1024)(_check)


def _unreachable(endpoint: TcpEndpoint) -> DialRejected | None:
    host, protocol = endpoint.host, endpoint.protocol
    address, percent, scope = host.partition("%")
    ip = parse_ip(address)
    if ip is None and (len(host) > _NAME_CHARS_MAX or not _NAME.fullmatch(host)):
        return DialRejected(lookup_failed(host, protocol=protocol))
    if percent and (ip is None or ip.version != 6 or not _SCOPE.fullmatch(scope)):
        return DialRejected(lookup_failed(host, protocol=protocol))
    if ip is not None and ip.version not in endpoint.ip_versions:
        return DialRejected(f"dial {protocol}: address {host}: no suitable address found")
    return None


def connect_failed(address: str, error_number: int, protocol: str = "tcp") -> str:
    """Returns the text of a failed connect; ``address`` is the ``ip:port`` that was tried."""
    text = _CONNECT_ERRORS.get(error_number, f"connect: errno {error_number}")
    return f"dial {protocol} {_shown(address)}: {text}"


def destination_refused(address: str, rule: str, protocol: str = "tcp") -> str:
    """Returns the text of a dial that the destination policy refuses."""
    return f"dial {protocol} {_shown(address)}: destination refused by {rule}"


def dial_timed_out(address: str, protocol: str = "tcp") -> str:
    """Returns the text of a dial without an answer within the timeout."""
    return f"dial {protocol} {_shown(address)}: i/o timeout"


def lookup_failed(host: str, failure: LookupFailure = LookupFailure.NOT_FOUND, protocol: str = "tcp") -> str:
    """Returns the text of a failed DNS lookup."""
    return f"dial {protocol}: lookup {_shown(host)}: {failure.value}"


def _shown(text: str) -> str:
    """Shortens a peer's text to one line; keeps its end, which names the error."""
    if len(text) > _SHOWN_CHARS_MAX:
        text = f"{text[: _SHOWN_CHARS_MAX - 40]}...{text[-37:]}"
    return "".join(char if char.isprintable() else "?" for char in text)
