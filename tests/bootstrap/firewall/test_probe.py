"""Probes a port: every kind of closed port, and every program on an open one, has its own result."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bootbridge.bootstrap.firewall.probe import FirewallProbeResult, PortState, probe
from bootbridge.demo.network import (
    DemoNamespaces,
    NetworkContext,
    VethPair,
    ipv6_works,
    namespaces_unavailable_reason,
)
from bootbridge.errors import OperatorError
from tests.support.certificates import Certificates

PORT = 8091
NEAR, FAR = {4: "192.0.2.8", 6: "2001:db8::8"}, {4: "192.0.2.9", 6: "2001:db8::9"}
# Under CI they run, and fail where they cannot.
needs_nft = pytest.mark.skipif(
    bool(namespaces_unavailable_reason() or not shutil.which("nft")) and os.environ.get("CI") != "true",
    reason=f"nft in network namespaces: {namespaces_unavailable_reason() or 'nft is not installed'}",
)
LOOPBACKS = ["127.0.0.1"] + (["::1"] if ipv6_works() else [])
each_family = pytest.mark.parametrize("address", LOOPBACKS)
PROBE = """
import dataclasses, json, sys
from bootbridge.bootstrap.firewall.probe import probe
print(json.dumps(dataclasses.asdict(probe(sys.argv[1], int(sys.argv[2]), timeout=float(sys.argv[3])))))
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def our_context(certificates: Certificates) -> ssl.SSLContext:
    """Returns the TLS settings of the proxy-server's agent port: HTTP/2, client certificate required."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.path("server.crt"), certificates.path("server.key"))
    context.load_verify_locations(certificates.path("agents-ca.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    return context


@contextmanager
def listener(address: str, answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Accepts one connection and passes it to `answer`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        server.settimeout(10)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(10)
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)
        assert not thread.is_alive()


def handshake(context: ssl.SSLContext) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        try:
            context.wrap_socket(connection, server_side=True).close()
        except (ssl.SSLError, OSError):
            pass  # the probe sends no certificate

    return answer


@each_family
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_our_server_is_open(certificates: Certificates, address: str, newest: ssl.TLSVersion) -> None:
    """Without a client certificate. TLS 1.2 rejects the probe during the handshake, TLS 1.3 after it."""
    context = our_context(certificates)
    context.maximum_version = newest
    with listener(address, handshake(context)) as port:
        found = probe(address, port)
    assert (found.state, found.is_open, found.fix) == (PortState.OPEN, True, "")


@each_family
def test_a_closed_port_is_refused(address: str) -> None:
    """The machine is up, but nothing listens."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as bound:
        bound.bind((address, 0))
        found = probe(address, bound.getsockname()[1])
    assert (found.state, found.evidence) == (PortState.REFUSED, "connection refused")
    assert "konnectivity-server" in found.fix


def close_connection(connection: socket.socket) -> None:
    connection.recv(4096)


def speak_http(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def stay_silent(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


@each_family
@pytest.mark.parametrize("other_program", [close_connection, speak_http, stay_silent])
def test_another_program_on_the_port(address: str, other_program: Callable[[socket.socket], None]) -> None:
    """One that closes the connection, one that speaks HTTP/1, one that stays silent."""
    with listener(address, other_program) as port:
        found = probe(address, port, timeout=0.5)
    assert found.state is PortState.NOT_OURS
    assert str(port) in found.fix


def test_a_tls_server_without_http2_is_another_program(certificates: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.path("server.crt"), certificates.path("server.key"))
    with listener("127.0.0.1", handshake(context)) as port:
        assert probe("127.0.0.1", port).state is PortState.NOT_OURS


def test_a_host_name_is_rejected() -> None:
    """Agents dial an address. A name could resolve to another machine."""
    with pytest.raises(OperatorError, match="--from-node: invalid IP address 'bootstrap'"):
        probe("bootstrap", PORT)


# --- real packet filters


class Wire:
    """Connects two network namespaces: the probe runs in `near`, filter and server in `far`."""

    def __init__(self, near: NetworkContext, far: NetworkContext) -> None:
        self.near, self.far = near, far

    def filter(self, *statements: str) -> None:
        chain = "add table inet f; add chain inet f in { type filter hook input priority 0; }"
        rules = (f"add rule inet f in tcp dport {PORT} {statement}" for statement in statements)
        script = "; ".join((chain, *rules))
        subprocess.run(self.far.command(["nft", script]), check=True, capture_output=True)

    def probe(self, address: str, timeout: float = 5) -> FirewallProbeResult:
        argv = [sys.executable, "-c", PROBE, address, str(PORT), str(timeout)]
        done = subprocess.run(self.near.command(argv), check=True, capture_output=True, text=True, timeout=30)
        fields = json.loads(done.stdout)
        return FirewallProbeResult(**fields | {"state": PortState(fields["state"])})


@pytest.fixture
def wire() -> Iterator[Wire]:
    namespaces = DemoNamespaces(f"bb-probe-{os.getpid()}")
    try:
        near, far = namespaces.create("near", "near"), namespaces.create("far", "far")
        pairs = tuple((NEAR[version], FAR[version]) for version in (4, 6))
        namespaces.connect(VethPair((near, far), ("a", "b"), pairs))
        yield Wire(near, far)
    finally:
        namespaces.remove()


@needs_nft
@pytest.mark.parametrize("version", [4, 6])
def test_a_firewall_that_drops_is_filtered(wire: Wire, version: int) -> None:
    """After the timeout. The fix names the command that lists the rules."""
    wire.filter("drop")
    found = wire.probe(FAR[version], timeout=0.5)
    assert found.state is PortState.FILTERED
    assert 0.5 <= found.seconds < 5
    assert "bootbridge firewall show" in found.fix


@needs_nft
@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("reject with tcp reset", PortState.REFUSED),
        ("reject with icmpx port-unreachable", PortState.REFUSED),
        ("reject with icmpx host-unreachable", PortState.UNREACHABLE),
    ],
)
@pytest.mark.parametrize("version", [4, 6])
def test_a_firewall_that_rejects(wire: Wire, version: int, statement: str, state: PortState) -> None:
    """Is found before the timeout, for each kind of rejection."""
    wire.filter(statement)
    found = wire.probe(FAR[version], timeout=20)
    assert found.state is state
    assert found.seconds < 10


@needs_nft
@pytest.mark.parametrize("version", [4, 6])
def test_an_address_without_a_route_is_unreachable(wire: Wire, version: int) -> None:
    """No packet is sent, so no firewall is to blame."""
    assert wire.probe({4: "198.51.100.1", 6: "2001:db8:1::1"}[version]).state is PortState.UNREACHABLE


@needs_nft
@pytest.mark.parametrize("version", [4, 6])
def test_a_firewall_that_accepts(
    wire: Wire, version: int, certificates: Certificates, tmp_path: Path
) -> None:
    """Runs the real proxy-server behind the filter."""
    wire.filter(f"ip{'6' if version == 6 else ''} saddr {NEAR[version]} accept", "drop")
    flags = certificates.agent_port_flags() | {
        "uds-name": str(tmp_path / "s.sock"),
        "server-port": "0",
        "mode": "grpc",
        "agent-port": str(PORT),
        "agent-bind-address": FAR[version],
    }
    argv = [sys.executable, "-m", "bootbridge.cli.server", *(f"--{k}={v}" for k, v in flags.items())]
    server = subprocess.Popen(wire.far.command(argv), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        found = _probe_until_it_listens(wire, FAR[version], server)
    finally:
        server.terminate()
        output, _ = server.communicate(timeout=10)
    assert found.state is PortState.OPEN, output.decode()


def _probe_until_it_listens(wire: Wire, address: str, server: subprocess.Popen[bytes]) -> FirewallProbeResult:
    for _ in range(50):  # each starts an interpreter, so no sleep is needed
        found = wire.probe(address)
        if found.state is not PortState.REFUSED or server.poll() is not None:
            break
    return found
