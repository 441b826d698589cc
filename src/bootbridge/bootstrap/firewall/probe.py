"""Tries the agents' port from a node's side: a TCP connection and a TLS greeting, no certificate needed.

A firewall that drops, one that rejects, a missing route, a closed port and a stranger behind an
open one all look different from here, and each has another fix.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
import time
from dataclasses import dataclass
from enum import StrEnum

from bootbridge.errors import OperatorError

PROBE_SECONDS = 5.0
_FILTERED = {errno.ETIMEDOUT, errno.EACCES, errno.EPERM}
_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL}


class PortState(StrEnum):
    OPEN = "open"
    REFUSED = "refused"
    FILTERED = "filtered"
    UNREACHABLE = "unreachable"
    NOT_OURS = "open, but not our server"


@dataclass(frozen=True)
class FirewallProbeResult:
    """What was found, the evidence for it, and what to do about it."""

    address: str
    port: int
    state: PortState
    evidence: str
    seconds: float

    @property
    def is_open(self) -> bool:
        return self.state is PortState.OPEN

    @property
    def fix(self) -> str:
        return _FIXES[self.state].format(port=self.port, address=self.address)


_FIXES = {
    PortState.OPEN: "",
    PortState.REFUSED: (
        "the bootstrap node answers, but nothing listens on TCP {port}, or a firewall rejects it: "
        "see whether the konnectivity-server pod runs there"
    ),
    PortState.FILTERED: (
        "a firewall drops TCP {port}: let the nodes reach it, `bootbridge firewall show` says how"
    ),
    PortState.UNREACHABLE: (
        "there is no way to {address} from here, or a firewall says so: "
        "check the address, the routes and the rules"
    ),
    PortState.NOT_OURS: (
        "something else listens on {address} port {port}: "
        "check the address, and for a proxy or load balancer in between"
    ),
}


def probe(address: str, port: int, timeout: float = PROBE_SECONDS) -> FirewallProbeResult:
    """Connect to an IPv4 or IPv6 address, a zone such as %eth0 included; never longer than `timeout`."""
    family = _family(address)
    began = time.monotonic()
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(socket.getaddrinfo(address, port, family, socket.SOCK_STREAM)[0][4])
            state, evidence = _greet(connection, began + timeout)
    except OSError as error:
        state, evidence = _why_no_connection(error, timeout)
    return FirewallProbeResult(address, port, state, evidence, time.monotonic() - began)


def _family(address: str) -> socket.AddressFamily:
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        hint = "for example 10.0.0.5 or fd00::5"
        raise OperatorError(f"invalid IP address {address!r}", subject="--from-node", hint=hint) from None
    return socket.AF_INET if version == 4 else socket.AF_INET6


def _why_no_connection(error: OSError, timeout: float) -> tuple[PortState, str]:
    if isinstance(error, TimeoutError) or error.errno in _FILTERED:
        said = f"no answer within {timeout:g} s" if isinstance(error, TimeoutError) else str(error.strerror)
        return PortState.FILTERED, said
    if error.errno == errno.ECONNREFUSED:
        return PortState.REFUSED, "connection refused"
    if error.errno in _UNREACHABLE or isinstance(error, socket.gaierror):
        return PortState.UNREACHABLE, error.strerror or str(error)
    return PortState.NOT_OURS, error.strerror or str(error)


def _greet(connection: socket.socket, deadline: float) -> tuple[PortState, str]:
    """Our server speaks TLS and HTTP/2, and wants a certificate; we show none and trust none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        with context.wrap_socket(connection) as speaking:
            return _judge(speaking)
    except TimeoutError:
        return PortState.NOT_OURS, "it accepts connections but says nothing in TLS"
    except ssl.SSLError as error:
        # How servers up to TLS 1.2 say that they want a certificate: OpenSSL's and Go's way.
        if error.reason and error.reason.endswith(("HANDSHAKE_FAILURE", "BAD_CERTIFICATE", "_REQUIRED")):
            return PortState.OPEN, "TLS, it wants a certificate"
        return PortState.NOT_OURS, f"no TLS as ours: {error.reason or error}"
    except OSError as error:
        return PortState.NOT_OURS, f"it hangs up on TLS: {error.strerror or error}"


def _judge(speaking: ssl.SSLSocket) -> tuple[PortState, str]:
    if speaking.selected_alpn_protocol() != "h2":
        return PortState.NOT_OURS, f"{speaking.version()}, but no HTTP/2"
    return PortState.OPEN, f"{speaking.version()} with HTTP/2"
