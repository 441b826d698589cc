"""Samples over real HTTP connections: from our documents, and from whatever else may listen there."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bootbridge.errors import OperatorError
from bootbridge.top import fetch
from bootbridge.top.fetch import NoAnswerError, NotTheProgramError, ProgramUrl, RowQuery, StatusClient
from tests.support.process_program import free_port
from tests.top.documents import server_document
from tests.top.test_metrics_page import GO_SERVER

Pages = dict[str, tuple[int, str] | tuple[int, str, str]]
Serve = Callable[[Pages], StatusClient]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts HTTP servers with these pages: status, body and, of a redirect, the location."""
    servers: list[ThreadingHTTPServer] = []

    def start(pages: Pages) -> StatusClient:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body, *location = pages.get(self.path.partition("?")[0], (404, "not found"))
                data = body.encode()
                self.send_response(status)
                for each in location:
                    self.send_header("Location", each)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_words: object) -> None:
                pass

        return StatusClient(ProgramUrl("127.0.0.1", listen(Handler)))

    def listen(handler: type[BaseHTTPRequestHandler]) -> int:
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return int(servers[-1].server_address[1])

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8095", "http://127.0.0.1:8095"),
        ("http://127.0.0.1:8095/", "http://127.0.0.1:8095"),
        ("http://node:8095/status", "http://node:8095"),
        ("https://node/proxy/a/metrics", "https://node:443/proxy/a"),
        ("node:8095", "http://node:8095"),
        (":8095", "http://127.0.0.1:8095"),
        ("8095", "http://127.0.0.1:8095"),
        ("[::1]:8095", "http://[::1]:8095"),
    ],
)
def test_urls(text: str, url: str) -> None:
    assert str(ProgramUrl.parse(text)) == url


@pytest.mark.parametrize(
    "text",
    [
        *("", "ftp://node:1", "http://", "http://node:99999", "http://node:0", "http://a b:1"),
        *("http://user:secret@node:1", "http://node:1/?q", "http://node:1/\r\nHost: x", "http://[::1"),
        *("http://node:x", "\x1b[2J"),
    ],
)
def test_an_invalid_url_is_refused(text: str) -> None:
    with pytest.raises(OperatorError, match="invalid URL") as caught:
        ProgramUrl.parse(text)
    assert str(caught.value).isprintable()


def test_status_is_preferred_and_gets_the_query(serve: Serve) -> None:
    client = serve({"/status": (200, json.dumps(server_document())), "/metrics": (200, GO_SERVER)})
    sample = client.sample(RowQuery(filter="a b"))
    assert (sample.has_details, sample.identity) == (True, "server-1")


def test_without_status_the_metrics_are_read(serve: Serve) -> None:
    sample = serve({"/metrics": (200, GO_SERVER)}).sample()
    assert (sample.has_details, sample.peers_total) == (False, 1)


def test_the_redirect_of_an_agents_admin_port_is_followed(serve: Serve) -> None:
    """Also where that port has another number here, as with port forwarding."""
    health = serve({"/metrics": (200, GO_SERVER)}).url.port
    admin = serve({"/metrics": (301, "moved", f"//127.0.0.1:{health}/metrics")})
    assert admin.sample().peers_total == 1
    forwarded = serve({"/metrics": (301, "moved", "//127.0.0.1:2042/metrics")})
    assert StatusClient(forwarded.url, {2042: health}).sample().peers_total == 1


def test_a_redirect_to_another_host_is_not_followed(serve: Serve) -> None:
    """A redirect chooses the port only; the host stays the one that the operator gave."""
    health = serve({"/metrics": (200, GO_SERVER)}).url.port
    admin = serve({"/metrics": (301, "moved", f"//192.0.2.1:{health}/metrics")})
    assert admin.sample().peers_total == 1


def test_connection_refused() -> None:
    with pytest.raises(NoAnswerError, match=r"^http://127.0.0.1:\d+: connection refused \(is the program"):
        StatusClient(ProgramUrl("127.0.0.1", free_port())).sample()


def test_an_unknown_host() -> None:
    with pytest.raises(NoAnswerError, match="host name not found"):
        StatusClient(ProgramUrl("nowhere.invalid", 8095)).sample()


def test_no_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = StatusClient(ProgramUrl("127.0.0.1", listener.getsockname()[1]))
        with pytest.raises(NoAnswerError, match="timed out after"):
            client.sample()


def test_another_web_server_is_not_the_program(serve: Serve) -> None:
    """For example `python -m http.server`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(NotTheProgramError) as caught:
            StatusClient(ProgramUrl("127.0.0.1", int(server.server_address[1]))).sample()
    finally:
        server.shutdown()
        server.server_close()
    assert "not a proxy-server or proxy-agent (/status: 404 Not Found; /metrics: 404 Not Found)" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "pages",
    [
        {"/status": (200, "<html>")},
        {"/status": (200, '{"program": "join-service"}')},
        {"/status": (200, "[" * 100_000)},
        {"/metrics": (200, "go_goroutines 1\n")},
        {"/metrics": (301, "moved", "http://[")},
        {"/metrics": (500, "\x1b[2J")},
    ],
)
def test_other_answers_are_not_the_program(serve: Serve, pages: Pages) -> None:
    with pytest.raises(NotTheProgramError, match="not a proxy-server or proxy-agent"):
        serve(pages).sample()


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x15\x03\x01\x00\x02\x02\x50", b""])
def test_a_port_without_http_is_not_the_program(greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(greeting)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(
            OperatorError, match=r"invalid HTTP response|connection closed without a response"
        ):
            StatusClient(ProgramUrl("127.0.0.1", listener.getsockname()[1])).sample()


def test_an_endless_answer_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "BODY_BYTES_MAX", 1 << 20)
    with pytest.raises(NotTheProgramError, match="response above 1 MiB"):
        serve({"/status": (200, "x" * (2 << 20))}).sample()


def test_after_a_lost_connection_status_is_asked_for_again(serve: Serve) -> None:
    """A Go server may be replaced by ours, at the same address."""
    pages: Pages = {"/metrics": (200, GO_SERVER)}
    client = serve(pages)
    assert not client.sample().has_details
    pages["/status"] = (200, json.dumps(server_document()))
    assert not client.sample().has_details
    url, client.url = client.url, ProgramUrl("127.0.0.1", free_port())
    with pytest.raises(NoAnswerError):
        client.sample()
    client.url = url
    assert client.sample().has_details
