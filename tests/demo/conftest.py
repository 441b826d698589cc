"""A running webhook, and a fake proxy-server with scripted responses."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bootbridge.demo.certificates import DemoCertificates, issue_certificates
from bootbridge.demo.network import namespaces_unavailable_reason
from bootbridge.demo.webhook import WebhookServer

# Under CI these tests run, and fail where namespaces are unavailable.
needs_namespaces = pytest.mark.skipif(
    bool(namespaces_unavailable_reason()) and os.environ.get("CI") != "true",
    reason=f"network namespaces: {namespaces_unavailable_reason()}",
)


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A temporary directory whose path is short enough for a unix socket."""
    path = Path(tempfile.mkdtemp(prefix="bbt-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> DemoCertificates:
    return issue_certificates(tmp_path_factory.mktemp("certificates"), ["127.0.0.1"], ["node1"])


@pytest.fixture
def webhook(certificates: DemoCertificates) -> Iterator[int]:
    """The port of a running webhook on 127.0.0.1."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificates.webhook)
    with WebhookServer("127.0.0.1", 0, tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class FakeProxyServer:
    """Accepts one connection, reads the request head, and passes the connection to `respond`."""

    def __init__(self, path: Path, respond: Callable[[socket.socket], None]) -> None:
        self.path = str(path)
        self.request = b""
        self._respond = respond
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.settimeout(5)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._thread.join(5)
        self._listener.close()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while b"\r\n\r\n" not in self.request and (chunk := connection.recv(4096)):
                self.request += chunk
            self._respond(connection)


@pytest.fixture
def proxy(short_tmp: Path) -> Iterator[Callable[[Callable[[socket.socket], None]], FakeProxyServer]]:
    started: list[FakeProxyServer] = []

    def start(respond: Callable[[socket.socket], None]) -> FakeProxyServer:
        started.append(FakeProxyServer(short_tmp / "proxy.sock", respond))
        return started[-1]

    yield start
    for each in started:
        each.close()
