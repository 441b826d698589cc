"""A download that is cut in the middle: what the caller of each frontend sees (docs/operating.md)."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.support.process_endpoints import Endpoint
from tests.support.process_program import until
from tests.support.process_tunnels import ConnectTunnel, GrpcTunnel, Tunnel, dial, receive
from tests.support.tunnel_programs import Agent, Programs, Server

Endpoints = Callable[..., Endpoint]
PART = b"the first half, "


class Unfinished:
    """Sends a part of its answer and, until the test is over, neither reads nor sends more."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(PART)
        self.released.wait(120)


@pytest.fixture
def unfinished() -> Iterator[Unfinished]:
    serve = Unfinished()
    yield serve
    serve.released.set()


@dataclass
class Pair:
    server: Server
    agent: Agent

    def stop_server(self) -> None:
        self.server.terminate()
        assert self.server.wait() == 0

    def kill_agent(self) -> None:
        self.agent.kill()

    def drain_agent(self) -> None:
        """Until its time limit."""
        self.agent.terminate()
        assert self.agent.wait() == 0


CUTS = {
    "server stops at its limit": Pair.stop_server,
    "agent killed": Pair.kill_agent,
    "agent drained to its limit": Pair.drain_agent,
}


@pytest.fixture(params=CUTS)
def cut(request: pytest.FixtureRequest) -> Callable[[Pair], None]:
    return CUTS[request.param]


def start(programs: Programs, mode: str, *, tcp: bool = False) -> Pair:
    limits = {"graceful-shutdown-timeout": "100ms"}
    return Pair(
        *programs.pair(mode=mode, tcp=tcp, server_flags=limits, agent_flags={"drain-timeout": "100ms"})
    )


def download_begun(server: Server, address: str) -> Tunnel:
    tunnel = dial(server, address)
    tunnel.send(b"?")
    assert receive(tunnel, len(PART)) == PART
    return tunnel


def test_a_tls_caller_sees_a_reset(
    programs: Programs, endpoint: Endpoints, unfinished: Unfinished, cut: Callable[[Pair], None]
) -> None:
    """Of its TCP connection; and no close_notify precedes it."""
    pair = start(programs, "http-connect", tcp=True)
    tunnel = download_begun(pair.server, endpoint(unfinished).address)
    assert isinstance(tunnel, ConnectTunnel)
    cut(pair)
    # Below TLS: by default Python's TLS reports a reset as an end.
    with socket.socket(fileno=tunnel.sock.detach()) as sock:
        sock.settimeout(20)
        with pytest.raises(ConnectionResetError):
            sock.recv(100)


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_a_grpc_caller_gets_an_error_text(
    programs: Programs,
    endpoint: Endpoints,
    unfinished: Unfinished,
    cut: Callable[[Pair], None],
    tcp: bool,
) -> None:
    """CLOSE_RSP with an error, also on a unix socket."""
    pair = start(programs, "grpc", tcp=tcp)
    tunnel = download_begun(pair.server, endpoint(unfinished).address)
    assert isinstance(tunnel, GrpcTunnel)
    cut(pair)
    assert tunnel.recv() == b""
    assert tunnel.close_error
    tunnel.abandon()


def test_a_caller_on_a_unix_socket_whose_upload_is_unread_sees_a_reset(
    programs: Programs, endpoint: Endpoints, unfinished: Unfinished, cut: Callable[[Pair], None]
) -> None:
    """A unix socket is reset when it is closed with unread data."""
    pair = start(programs, "http-connect")
    tunnel = download_begun(pair.server, endpoint(unfinished).address)
    assert isinstance(tunnel, ConnectTunnel)
    fill(tunnel.sock)
    cut(pair)
    with pytest.raises(ConnectionResetError):
        tunnel.recv()
    tunnel.abandon()


def fill(sock: socket.socket) -> None:
    """Sends until the server reads no more: its queues towards the endpoint are full."""
    sock.settimeout(1)
    try:
        while True:
            sock.sendall(bytes(65536))
    except TimeoutError:
        sock.settimeout(20)


def test_a_caller_on_a_unix_socket_that_only_reads_sees_an_end(
    programs: Programs, endpoint: Endpoints, unfinished: Unfinished, cut: Callable[[Pair], None]
) -> None:
    """All that a unix socket can express. The TLS or HTTP inside detects the truncation."""
    pair = start(programs, "http-connect")
    tunnel = download_begun(pair.server, endpoint(unfinished).address)
    until(lambda: pair.server.metric("queued_bytes", direction="to_agent") == 0, "the upload was read")
    cut(pair)
    assert tunnel.recv() == b""
    tunnel.abandon()


def test_the_tls_inside_a_unix_socket_detects_the_truncation(
    programs: Programs, endpoint: Endpoints, cut: Callable[[Pair], None]
) -> None:
    """As kube-apiserver connects to webhooks, aggregated API servers and kubelets: no close_notify."""
    released = threading.Event()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    flags = programs.certificates.frontend_port_flags()
    server_context.load_cert_chain(str(flags["server-cert"]), str(flags["server-key"]))

    def serve(sock: socket.socket) -> None:
        with server_context.wrap_socket(sock, server_side=True) as tls:
            tls.sendall(PART)
            released.wait(120)

    pair = start(programs, "http-connect")
    tunnel = dial(pair.server, endpoint(serve).address)
    assert isinstance(tunnel, ConnectTunnel)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # Python 3.11.2 ignores it by default
    tls = context.wrap_socket(tunnel.sock, suppress_ragged_eofs=False)
    assert tls.recv(100) == PART
    cut(pair)
    # Which error it is depends on Python and OpenSSL: an unexpected end of two kinds, or a broken pipe.
    with pytest.raises((ssl.SSLError, ConnectionError)):
        tls.recv(100)
    tls.close()
    released.set()
