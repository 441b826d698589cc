"""The demo's client: it calls like a kube-apiserver, and a failure names the hop and the reason."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bootbridge.demo.calls import CallFailed, WebhookConnection, directly, through_tunnel
from bootbridge.demo.certificates import DemoCertificates, issue_certificates
from bootbridge.demo.network import NetworkContext
from tests.demo.conftest import FakeProxyServer

StartProxy = Callable[[Callable[[socket.socket], None]], FakeProxyServer]
POD = ("10.128.2.5", 8443)


def responds(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


def forwards_to(port: int) -> Callable[[socket.socket], None]:
    """Responds with 200, then copies bytes until both sides have closed."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        while chunk := source.recv(65536):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)

    def respond(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 Connection Established\r\n\r\n")
        with socket.create_connection(("127.0.0.1", port)) as onward:
            up = threading.Thread(target=copy, args=(connection, onward))
            up.start()
            try:
                copy(onward, connection)
            except OSError:
                pass  # the client has closed the connection
            up.join()

    return respond


def test_review_through_connect_and_tls(
    proxy: StartProxy, webhook: int, certificates: DemoCertificates
) -> None:
    """CONNECT, then TLS with the webhook, then two reviews on one connection."""
    server = proxy(forwards_to(webhook))
    sock = through_tunnel(server.path, *POD)
    with WebhookConnection(sock, certificates.webhook_client_context()) as connection:
        assert connection.review({"app": "web"})["allowed"] is True
        assert connection.review({"deny": "true"})["allowed"] is False
    assert server.request == b"CONNECT 10.128.2.5:8443 HTTP/1.1\r\nHost: 10.128.2.5:8443\r\n\r\n"


def test_ipv6_address_is_sent_in_brackets(proxy: StartProxy) -> None:
    server = proxy(responds(b"HTTP/1.1 200 OK\r\n\r\n"))
    through_tunnel(server.path, "fd00::5", 8443).close()
    assert server.request.startswith(b"CONNECT [fd00::5]:8443 HTTP/1.1\r\n")


def test_rejected_connect_reports_status_and_body(proxy: StartProxy) -> None:
    server = proxy(responds(b"HTTP/1.1 503 Service Unavailable\r\n\r\nno agent\r\nis connected"))
    with pytest.raises(CallFailed) as failure:
        through_tunnel(server.path, *POD)
    assert str(failure.value) == (
        "tunnel to 10.128.2.5:8443: proxy-server answered 503 Service Unavailable: no agent is connected"
    )
    assert failure.value.log_of == "proxy-server"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "closed the connection without a response"),
        (b"HTTP", "closed the connection without a response"),
        (b"SSH-2.0-nope\r\n\r\n", "the server does not use HTTP/1.1"),
        # The webhook never sends first, so early bytes cannot come from it.
        (b"HTTP/1.1 200 OK\r\n\r\nsurprise", "8 unexpected bytes"),
    ],
)
def test_invalid_connect_response_fails(proxy: StartProxy, data: bytes, reason: str) -> None:
    with pytest.raises(CallFailed, match=reason):
        through_tunnel(proxy(responds(data)).path, *POD)


def test_missing_unix_socket_points_to_proxy_server(short_tmp: Path) -> None:
    with pytest.raises(CallFailed, match="unix socket of proxy-server: No such file") as failure:
        through_tunnel(str(short_tmp / "none.sock"), *POD)
    assert failure.value.log_of == "proxy-server"


def test_silent_proxy_server_times_out(proxy: StartProxy) -> None:
    release = threading.Event()
    server = proxy(lambda _: release.wait(5) and None)
    with pytest.raises(CallFailed, match=r"tunnel to .*: timed out"):
        through_tunnel(server.path, *POD, timeout=0.05)
    release.set()


def test_webhook_of_another_authority_is_not_trusted(webhook: int, tmp_path: Path) -> None:
    """TLS is verified end to end, independent of the proxy."""
    other = issue_certificates(tmp_path, ["127.0.0.1"], []).webhook_client_context()
    sock = directly(NetworkContext("this machine"), "127.0.0.1", webhook)
    with pytest.raises(
        CallFailed, match="TLS handshake with webhook: certificate verification failed"
    ) as failure:
        WebhookConnection(sock, other)
    assert failure.value.log_of == "webhook"


def test_failed_direct_call_names_source_and_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(CallFailed, match="TCP from lab to pod: Connection refused"):
            directly(NetworkContext("lab"), "127.0.0.1", unused.getsockname()[1])


def test_failed_dial_leaks_no_descriptor(short_tmp: Path) -> None:
    """Hundreds of dials fail while a program starts."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(CallFailed):
            through_tunnel(str(short_tmp / "none.sock"), *POD)
    assert len(os.listdir("/proc/self/fd")) == before


def test_client_verifies_names_and_chains(certificates: DemoCertificates) -> None:
    tls = certificates.webhook_client_context()
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)
