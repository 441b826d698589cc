"""Endpoints behind the tunnel: real listening sockets, each connection served by its own thread."""

from __future__ import annotations

import hashlib
import queue
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

Serve = Callable[[socket.socket], None]


class Endpoint:
    """Listens on a loopback address until `close`."""

    def __init__(self, serve: Serve, host: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=300)
        self._serve = serve
        self._open: set[socket.socket] = set()
        self.accepted = 0
        self.port: int = self._listener.getsockname()[1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._open.add(sock)
            threading.Thread(target=self._run, args=(sock,), daemon=True).start()

    def _run(self, sock: socket.socket) -> None:
        try:
            self._serve(sock)
        except OSError:
            pass  # callers are allowed to vanish; tests look at results
        finally:
            self._open.discard(sock)
            sock.close()

    def close(self) -> None:
        # Closing alone does not wake a thread that waits in accept or recv.
        for sock in (self._listener, *self._open):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._listener.close()


def echo(sock: socket.socket) -> None:
    while data := sock.recv(65536):
        sock.sendall(data)


def send_first(sock: socket.socket) -> None:
    """A greeting at once, as SSH and MySQL do it, then an echo."""
    sock.sendall(b"220 I speak first\r\n")
    echo(sock)


def flood(sock: socket.socket) -> None:
    """Send for ever once asked with one byte."""
    if sock.recv(1):
        block = bytes(65536)
        while True:
            sock.sendall(block)


class Sink:
    """Reads to the end and reports (size, sha256, how it ended)."""

    def __init__(self) -> None:
        self.results: queue.Queue[tuple[int, str, str]] = queue.Queue()

    def __call__(self, sock: socket.socket) -> None:
        digest, size, end = hashlib.sha256(), 0, "eof"
        try:
            while data := sock.recv(65536):
                digest.update(data)
                size += len(data)
        except OSError as error:
            end = error.strerror or "broken"
        self.results.put((size, digest.hexdigest(), end))


class AnswerAfterEnd:
    """Reads until the caller has finished, only then answers: what half-close is for."""

    def __call__(self, sock: socket.socket) -> None:
        digest = hashlib.sha256()
        while data := sock.recv(65536):
            digest.update(data)
        sock.sendall(digest.hexdigest().encode())


class HalfCloser:
    """Sends bytes, half-closes, and continues to read; reports what it read."""

    def __init__(self, sent: bytes = b"that is all from me") -> None:
        self.sent = sent
        self.received: queue.Queue[bytes] = queue.Queue()

    def __call__(self, sock: socket.socket) -> None:
        sock.sendall(self.sent)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while data := sock.recv(65536):
            received += data
        self.received.put(received)


class NonReader:
    """Accepts and reads nothing until released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.released.wait(120)


class Gate:
    """Echoes one line, then waits for the test before it answers the next."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, sock: socket.socket) -> None:
        data = sock.recv(65536)
        self.opened.wait(120)
        sock.sendall(data)
        echo(sock)


def reset_after_read(sock: socket.socket) -> None:
    """Reads a little, then resets the connection."""
    sock.recv(100)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class HttpEndpoint:
    """A keep-alive HTTP/1.1 server: `/hello`, `/bytes/N`, `/wait` (until released), POST gives a digest."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        released = self.released = threading.Event()

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True
            request_queue_size = 300

            def handle_error(self, request: object, client_address: object) -> None:
                """Callers that vanish are part of the tests."""

        class Handler(_Handler):
            gate: ClassVar[threading.Event] = released

        self._server = Server((host, 0), Handler)
        self.port: int = self._server.server_address[1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gate: ClassVar[threading.Event]

    def do_GET(self) -> None:
        if self.path.startswith("/bytes/"):
            self._answer(pattern(int(self.path.removeprefix("/bytes/"))))
        else:
            if self.path == "/wait":
                self.gate.wait(120)
            self._answer(b"hello from the endpoint")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(hashlib.sha256(body).hexdigest().encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests look at answers, not at logs."""


def pattern(size: int) -> bytes:
    """Bytes in which every misplaced piece shows."""
    block = b"".join(struct.pack(">I", number) for number in range(16384))
    return (block * (size // len(block) + 1))[:size]
