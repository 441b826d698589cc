"""Tests the agents' port from a node: a TCP connection and a TLS handshake, without a certificate.

A firewall that drops, a firewall that rejects, a missing route, a closed port and another program on the port
produce different errors here, and each has another fix.
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
    NOT_OURS = "open, but not a proxy-server"


@dataclass(frozen=True)
class FirewallProbeResult:
    """Holds what was found, the evidence, and the fix."""

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
        "nothing listens on TCP {port} of the bootstrap node, or a firewall rejects it: "
        "check whether the konnectivity-server pod runs there"
    ),
    PortState.FILTERED: (
        "a firewall drops TCP {port}: open it to the nodes, `bootbridge firewall show` lists the rules"
    ),
    PortState.UNREACHABLE: (
        "no route to {address} from here, or a firewall rejects it: "
        "check the address, the routes and the firewall rules"
    ),
    PortState.NOT_OURS: (
        "another program listens on {address} port {port}: "
        "check the address, and whether a proxy or load balancer is in between"
    ),
}


def probe(address: str, port: int, timeout: float = PROBE_SECONDS) -> FirewallProbeResult:
    """Connects to an IP address, which may have a zone such as %eth0. Takes at most `timeout` seconds."""
    family = _family(address)
    began = time.monotonic()
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(socket.getaddrinfo(address, port, family, socket.SOCK_STREAM)[0][4])
            state, evidence = _handshake(connection, began + timeout)
    except OSError as error:
        state, evidence = _connection_error(error, timeout)
    return FirewallProbeResult(address, port, state, evidence, time.monotonic() - began)


def _family(address: str) -> socket.AddressFamily:
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        hint = "for example 10.0.0.5 or fd00::5"
        raise OperatorError(f"invalid IP address {address!r}", subject="--from-node", hint=hint) from None
    return socket.AF_INET if version == 4 else socket.AF_INET6


def _connection_error(error: OSError, timeout: float) -> tuple[PortState, str]:
    if isinstance(error, TimeoutError) or error.errno in _FILTERED:
        timed_out = isinstance(error, TimeoutError)
        return PortState.FILTERED, f"timed out after {timeout:g}s" if timed_out else str(error.strerror)
    if error.errno == errno.ECONNREFUSED:
        return PortState.REFUSED, "connection refused"
    if error.errno in _UNREACHABLE or isinstance(error, socket.gaierror):
        return PortState.UNREACHABLE, error.strerror or str(error)
    return PortState.NOT_OURS, error.strerror or str(error)


def _handshake(connection: socket.socket, deadline: float) -> tuple[PortState, str]:
    """Starts a TLS handshake without the client certificate that our server requires."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        with context.wrap_socket(connection) as tls:
            return _negotiated(tls)
    except TimeoutError:
        return PortState.NOT_OURS, "accepts connections but does not answer in TLS"
    except ssl.SSLError as error:
        # Up to TLS 1.2, these errors of OpenSSL and Go mean that a client certificate is required.
        if error.reason and error.reason.endswith(("HANDSHAKE_FAILURE", "BAD_CERTIFICATE", "_REQUIRED")):
            return PortState.OPEN, "TLS, client certificate required"
        return PortState.NOT_OURS, f"TLS handshake failed: {error.reason or error}"
    except OSError as error:
        return PortState.NOT_OURS, f"connection closed during the TLS handshake: {error.strerror or error}"


def _negotiated(tls: ssl.SSLSocket) -> tuple[PortState, str]:
    if tls.selected_alpn_protocol() != "h2":
        return PortState.NOT_OURS, f"{tls.version()}, but not HTTP/2"
    return PortState.OPEN, f"{tls.version()} with HTTP/2"
