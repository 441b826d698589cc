"""A connection through the server's socket, as the kube-apiserver opens it, in either protocol.

Blocking, for one call. A failed dial raises DialError with the text of the server or the agent.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bootbridge.bootstrap.plan.plan import Protocol
from bootbridge.errors import PeerError
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream

READ_BYTES = 65536
ANSWER_BYTES_MAX = 64 * 1024
PROXY_PATH = "/ProxyService/Proxy"
_HTTP2_SETTINGS = 4


class DialError(Exception):
    """The dial was refused or timed out; the text is the reason."""


class ProtocolMismatchError(DialError):
    """The server uses another protocol on its socket."""


class TunnelConnection(ABC):
    """Bytes to and from a pod."""

    @abstractmethod
    def send(self, data: bytes) -> None: ...

    @abstractmethod
    def receive(self) -> bytes:
        """Returns some bytes; none at the end."""


@contextmanager
def dial(path: Path, protocol: Protocol, address: str, seconds: float) -> Iterator[TunnelConnection]:
    """Connects to `address` through the socket at `path`; raises DialError."""
    make = _GrpcConnection if protocol is Protocol.GRPC else _ConnectConnection
    with opened(path, seconds) as sock:
        try:
            yield make(sock, address)
        except TimeoutError:
            raise DialError(f"timed out after {seconds:g}s: no answer from the server") from None
        except OSError as error:
            if isinstance(error, ssl.SSLError):
                raise
            raise DialError(f"the server's socket: {error.strerror or error}") from error


@contextmanager
def opened(path: Path, seconds: float) -> Iterator[socket.socket]:
    """Connects to the unix socket; a relative path avoids the kernel's limit of 108 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(seconds)
            sock.connect(f"/proc/self/fd/{folder}/{path.name}")
            yield sock
    finally:
        os.close(folder)


def detect_protocol(sock: socket.socket) -> Protocol | None:
    """Returns the server's protocol, from its answer to an HTTP/2 preface; None if it closes."""
    sock.sendall(b"".join(Http2Connection(client=True).take_output()))
    try:
        answer = sock.recv(READ_BYTES)
    except OSError:
        return None
    if answer.startswith(b"HTTP/1."):
        return Protocol.HTTP_CONNECT
    return Protocol.GRPC if len(answer) > 3 and answer[3] == _HTTP2_SETTINGS else None


class _ConnectConnection(TunnelConnection):
    """HTTP CONNECT; after the response head the socket is the connection."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self._sock = sock
        sock.sendall(f"CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head, rest = self._head()
        version, _, status = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        if not version.startswith("HTTP/1."):
            raise ProtocolMismatchError("the server does not use HTTP/1.1")
        if not status.startswith("200"):
            raise DialError(self._reason(status, rest))

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def receive(self) -> bytes:
        return self._sock.recv(READ_BYTES)

    def _head(self) -> tuple[bytes, bytes]:
        received = b""
        while b"\r\n\r\n" not in received and len(received) < ANSWER_BYTES_MAX:
            data = self._sock.recv(READ_BYTES)
            if not data or not b"HTTP/1.".startswith((received + data)[:7]):
                return received + data, b""
            received += data
        head, _, rest = received.partition(b"\r\n\r\n")
        return head, rest

    def _reason(self, status: str, body: bytes) -> str:
        """Returns the body of an error response, which contains the reason."""
        self._sock.settimeout(0.5)
        try:
            while len(body) < ANSWER_BYTES_MAX and (data := self._sock.recv(READ_BYTES)):
                body += data
        except OSError:
            pass
        return " ".join(body.decode("utf-8", "replace").split()) or status


class _GrpcConnection(TunnelConnection):
    """One Proxy stream: DIAL_REQ, DIAL_RSP, then DATA in both directions."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self._sock = sock
        self._http2 = Http2Connection(client=True)
        headers = grpc.request_headers(PROXY_PATH, "localhost", scheme="http")
        self._inbox = self._http2.open_stream(headers, _Inbox)
        random = secrets.randbits(62)
        self._send_packet(p.DialRequest("tcp", address, random))
        answer = self._next_packet()
        if not isinstance(answer, p.DialResponse):
            raise DialError(self._inbox.ended or f"the server answered {answer}")
        if answer.error:
            raise DialError(answer.error)
        self._id = answer.connect_id

    def send(self, data: bytes) -> None:
        self._send_packet(p.Data(self._id, data))

    def receive(self) -> bytes:
        while True:
            packet = self._next_packet()
            if isinstance(packet, p.Data):
                return packet.data
            if packet is None or isinstance(packet, p.CloseResponse):
                return b""

    def _send_packet(self, packet: p.Packet) -> None:
        body = p.encode(packet)
        while not self._inbox.stream.ready and not self._inbox.ended:
            self._exchange()
        self._inbox.stream.send(grpc.message_prefix(len(body)) + body)
        self._flush()

    def _next_packet(self) -> p.Packet | None:
        while not self._inbox.packets:
            if self._inbox.ended:
                return None
            self._exchange()
        return self._inbox.packets.pop(0)

    def _exchange(self) -> None:
        self._flush()
        data = self._sock.recv(READ_BYTES)
        if data.startswith(b"HTTP/1."):
            raise ProtocolMismatchError("the server uses HTTP/1.1")
        if data:
            self._http2.receive(data)
        else:
            self._http2.lost("the server closed the connection")
        self._flush()

    def _flush(self) -> None:
        if out := b"".join(self._http2.take_output()):
            self._sock.sendall(out)
        self._http2.flushed(True)


class _Inbox:
    """Holds the received packets of one stream, and why it ended."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.packets: list[p.Packet] = []
        self.ended = ""
        self._reader = grpc.MessageReader(self._on_message)

    def on_headers(self, headers: Headers, end: bool) -> None:
        if end:
            self.ended = grpc.status_of(headers)[1] or "the server ended the stream"

    def on_data(self, buffer: p.Buffer, start: int, end: int) -> None:
        try:
            self._reader.receive(buffer, start, end)
        except PeerError as error:
            self.ended = str(error)

    def _on_message(self, buffer: p.Buffer, start: int, end: int) -> None:
        self.packets.append(p.decode(bytes(memoryview(buffer)[start:end])))

    def on_end(self) -> None:
        self.ended = self.ended or "the server ended the stream"

    def on_reset(self, code: int, reason: str) -> None:
        self.ended = reason or f"the server reset the stream ({code})"

    def on_ready(self) -> None: ...


# --- TLS through the tunnel


def tls_handshake(connection: TunnelConnection, context: ssl.SSLContext, server_name: str) -> str:
    """Performs a TLS handshake and returns its version. Raises ssl.SSLError or ConnectionError."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=server_name)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            if out := outgoing.read():
                connection.send(out)
            data = connection.receive()
            if not data:
                raise ConnectionError("connection closed during the TLS handshake") from None
            incoming.write(data)
        else:
            connection.send(outgoing.read())
            return str(tls.version())
