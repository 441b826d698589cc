"""The caller does what a kube-apiserver does, and says which hop failed when one does."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bootbridge.demo.calls import Conversation, HopFailed, directly, through_tunnel
from bootbridge.demo.certificates import Papers, issue
from bootbridge.demo.network import Place
from tests.demo.conftest import ProxyDouble

MakeProxy = Callable[[Callable[[socket.socket], None]], ProxyDouble]


def says(answer: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(answer)


def relays_to(port: int) -> Callable[[socket.socket], None]:
    """Answer 200, then pass bytes on until both sides have closed."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        while chunk := source.recv(65536):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)

    def then(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 Connection Established\r\n\r\n")
        with socket.create_connection(("127.0.0.1", port)) as onward:
            up = threading.Thread(target=copy, args=(connection, onward))
            up.start()
            try:
                copy(onward, connection)
            except OSError:
                pass  # the caller has hung up
            up.join()

    return then


def test_a_review_through_connect_and_tls(proxy: MakeProxy, webhook: int, papers: Papers) -> None:
    """CONNECT, then TLS with the webhook itself, then two reviews on one connection."""
    double = proxy(relays_to(webhook))
    sock = through_tunnel(double.path, "10.128.2.5", 8443)
    with Conversation(sock, papers.tls_to_webhook()) as conversation:
        assert conversation.review({"app": "web"})["allowed"] is True
        assert conversation.review({"deny": "true"})["allowed"] is False
    assert double.request == b"CONNECT 10.128.2.5:8443 HTTP/1.1\r\nHost: 10.128.2.5:8443\r\n\r\n"


def test_an_ipv6_address_is_asked_for_in_brackets(proxy: MakeProxy) -> None:
    """Otherwise nobody could tell where the port begins."""
    double = proxy(says(b"HTTP/1.1 200 OK\r\n\r\n"))
    through_tunnel(double.path, "fd00::5", 8443).close()
    assert double.request.startswith(b"CONNECT [fd00::5]:8443 HTTP/1.1\r\n")


def test_a_refusal_names_the_tunnel_and_repeats_the_reason(proxy: MakeProxy) -> None:
    """The body of the refusal says which hop failed: it must reach the reader."""
    double = proxy(says(b"HTTP/1.1 503 Service Unavailable\r\n\r\nno agent\r\nis connected"))
    with pytest.raises(HopFailed) as failure:
        through_tunnel(double.path, "10.128.2.5", 8443)
    assert str(failure.value) == (
        "tunnel to 10.128.2.5:8443: the proxy-server said 503 Service Unavailable: no agent is connected"
    )
    assert failure.value.log_of == "proxy-server"


@pytest.mark.parametrize("answer", [b"", b"HTTP", b"SSH-2.0-nope\r\n\r\n"])
def test_no_http_answer_is_a_failed_tunnel(proxy: MakeProxy, answer: bytes) -> None:
    """Also when the server just hangs up."""
    double = proxy(says(answer))
    with pytest.raises(HopFailed, match="closed without an answer"):
        through_tunnel(double.path, "10.128.2.5", 8443)


def test_bytes_that_nobody_sent_are_not_accepted(proxy: MakeProxy) -> None:
    """The webhook speaks second: whatever comes before the handshake is not its word."""
    double = proxy(says(b"HTTP/1.1 200 OK\r\n\r\nsurprise"))
    with pytest.raises(HopFailed, match="8 bytes came before"):
        through_tunnel(double.path, "10.128.2.5", 8443)


def test_a_missing_socket_points_at_the_proxy_server(short_tmp: Path) -> None:
    """The first hop of all."""
    with pytest.raises(HopFailed, match="unix socket: No such file") as failure:
        through_tunnel(str(short_tmp / "none.sock"), "10.128.2.5", 8443)
    assert failure.value.log_of == "proxy-server"


def test_a_silent_proxy_server_is_given_up_on(proxy: MakeProxy) -> None:
    """A call never hangs."""
    release = threading.Event()
    double = proxy(lambda _: release.wait(5) and None)
    with pytest.raises(HopFailed, match=r"tunnel to .*: no answer in time"):
        through_tunnel(double.path, "10.128.2.5", 8443, timeout=0.05)
    release.set()


def test_a_webhook_of_another_authority_is_not_trusted(webhook: int, tmp_path: Path) -> None:
    """TLS is verified end to end, through whatever carried the bytes."""
    stranger = issue(tmp_path, ["127.0.0.1"], []).tls_to_webhook()
    sock = directly(Place("this machine"), "127.0.0.1", webhook)
    with pytest.raises(HopFailed, match="TLS with the webhook: certificate not trusted") as failure:
        Conversation(sock, stranger)
    assert failure.value.log_of == "webhook"


def test_a_closed_port_names_the_direct_way() -> None:
    """The direct call says from where to where it failed, and why."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(HopFailed, match="TCP from the lab to the pod: Connection refused"):
            directly(Place("lab"), "127.0.0.1", unused.getsockname()[1])


def test_a_failed_dial_leaves_no_descriptor(short_tmp: Path, papers: Papers) -> None:
    """Failures are counted in hundreds while something starts up."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(HopFailed):
            through_tunnel(str(short_tmp / "none.sock"), "10.128.2.5", 8443)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_caller_verifies_names_and_chains(papers: Papers) -> None:
    """No switch turns verification off."""
    tls = papers.tls_to_webhook()
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)
