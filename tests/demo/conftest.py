"""A webhook that really runs, and a proxy that says what a test wants it to say."""

from __future__ import annotations

import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bootbridge.demo.certificates import Papers, issue
from bootbridge.demo.webhook import WebhookServer


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A temporary directory whose name leaves room for a unix socket's."""
    path = Path(tempfile.mkdtemp(prefix="bbt-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return issue(tmp_path_factory.mktemp("papers"), ["127.0.0.1"], ["node1"])


@pytest.fixture
def webhook(papers: Papers) -> Iterator[int]:
    """The port of a running webhook on 127.0.0.1."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*papers.webhook)
    with WebhookServer("127.0.0.1", 0, tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class ProxyDouble:
    """Accepts one connection, keeps the request it reads, and lets `then` do the rest."""

    def __init__(self, path: Path, then: Callable[[socket.socket], None]) -> None:
        self.path = str(path)
        self.request = b""
        self._then = then
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
            self._then(connection)


@pytest.fixture
def proxy(short_tmp: Path) -> Iterator[Callable[[Callable[[socket.socket], None]], ProxyDouble]]:
    made: list[ProxyDouble] = []

    def make(then: Callable[[socket.socket], None]) -> ProxyDouble:
        made.append(ProxyDouble(short_tmp / "proxy.sock", then))
        return made[-1]

    yield make
    for double in made:
        double.close()
