"""Callers on the apiserver's side, in both dialects, written without our own server's code.

HTTP CONNECT is a bare socket. gRPC uses the independent `h2` library for HTTP/2. Both offer
`send`, `recv` (b"" at the end) and `close`.
"""

from __future__ import annotations

import re
import secrets
import socket
import ssl
import struct
from typing import Protocol

import h2.config
import h2.connection
import h2.events

from bootbridge.wire import packets as p
from tests.support.tunnel_programs import Server

PATIENCE_SECONDS = 20.0
_RESET = struct.pack("ii", 1, 0)
_ENDS = (h2.events.StreamEnded, h2.events.StreamReset, h2.events.ConnectionTerminated)


class RefusedDialError(Exception):
    """The dial was answered with an error: HTTP status (0 with gRPC) and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


class Tunnel(Protocol):
    """What both dialects offer."""

    def send(self, data: bytes) -> None: ...
    def recv(self, size: int = 65536) -> bytes: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


def dial(server: Server, address: str, *, patience: float = PATIENCE_SECONDS) -> Tunnel:
    """A connection to `address` through `server`, in its mode and by its kind of frontend."""
    if server.mode == "grpc":
        return GrpcTunnel.dial(server, address, patience=patience)
    return ConnectTunnel.dial(server, address, patience=patience)


def frontend_socket(server: Server, alpn: str = "", patience: float = PATIENCE_SECONDS) -> socket.socket:
    if server.uds:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(patience)
        sock.connect(server.uds)
        return sock
    sock = socket.create_connection(("127.0.0.1", server.frontend_port), timeout=patience)
    return server.certificates.frontend_context(alpn).wrap_socket(sock, server_hostname="127.0.0.1")


class ConnectTunnel:
    """HTTP CONNECT as kube-apiserver does it: the first read must hold the 200 and nothing else."""

    def __init__(self, sock: socket.socket, head: bytes, extra: bytes) -> None:
        self.sock = sock
        self.head = head
        self.extra = extra

    @classmethod
    def dial(
        cls, server: Server, address: str, *, early: bytes = b"", patience: float = PATIENCE_SECONDS
    ) -> ConnectTunnel:
        sock = frontend_socket(server, "http/1.1", patience)
        try:
            return cls.ask(sock, address, early)
        except BaseException:
            sock.close()
            raise

    @classmethod
    def ask(cls, sock: socket.socket, address: str, early: bytes = b"") -> ConnectTunnel:
        sock.sendall(f"CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() + early)
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = sock.recv(65536)
            if not data:
                raise RefusedDialError(0, f"closed after {answer!r}")
            answer += data
        head, _, extra = answer.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        assert found, head
        if found[1] != b"200":
            while data := _last_words(sock):
                extra += data
            raise RefusedDialError(int(found[1]), extra.decode())
        return cls(sock, head, extra)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def recv(self, size: int = 65536) -> bytes:
        if self.extra:
            data, self.extra = self.extra[:size], self.extra[size:]
            return data
        return self.sock.recv(size)

    def finish(self) -> None:
        """No more from us, but we still listen."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()

    def close(self) -> None:
        self.sock.close()

    def abandon(self) -> None:
        """A caller that dies looks just like one that closes."""
        self.sock.close()


def _last_words(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except (ConnectionError, ssl.SSLError):
        return b""


class GrpcTunnel:
    """One Proxy stream: DIAL_REQ, then DATA both ways."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._stream = self._h2.get_next_available_stream_id()
        self._messages = b""
        self.packets: list[p.Packet] = []
        self.connect_id = 0
        self.status: dict[str, str] = {}
        self.over = False
        self._received = b""
        self.close_error: str | None = None
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/ProxyService/Proxy"),
            (":authority", "bridge"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        self._h2.send_headers(self._stream, headers)
        self._flush()

    @classmethod
    def dial(
        cls,
        server: Server,
        address: str,
        *,
        protocol: str = "tcp",
        random: int | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> GrpcTunnel:
        tunnel = cls(frontend_socket(server, "h2", patience))
        try:
            random = secrets.randbits(62) if random is None else random
            tunnel.send_packet(p.DialRequest(protocol, address, random))
            response = tunnel.next_packet()
        except BaseException:
            tunnel.close()
            raise
        if not isinstance(response, p.DialResponse) or response.error or response.random != random:
            tunnel.close()
            raise RefusedDialError(0, getattr(response, "error", str(response)))
        tunnel.connect_id = response.connect_id
        return tunnel

    # --- packets

    def send_packet(self, packet: p.Packet) -> None:
        body = p.encode(packet)
        message = b"\0" + struct.pack(">I", len(body)) + body
        while message:
            room = min(self._h2.local_flow_control_window(self._stream), self._h2.max_outbound_frame_size)
            if not room:
                self._receive()
                continue
            self._h2.send_data(self._stream, message[:room])
            message = message[room:]
            self._flush()

    def next_packet(self) -> p.Packet | None:
        """The next packet from the server; None when it ended the stream."""
        while not self.packets:
            if self.over:
                return None
            self._receive()
        return self.packets.pop(0)

    def _receive(self) -> None:
        data = self._sock.recv(65536)
        if not data:
            self.over = True
            return
        for event in self._h2.receive_data(data):
            self._on_event(event)
        self._flush()

    def _on_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self._messages += event.data
            self._split()
        elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            self.status |= {str(name): str(value) for name, value in event.headers}
        elif isinstance(
            event, h2.events.StreamEnded | h2.events.StreamReset | h2.events.ConnectionTerminated
        ):
            self.over = True

    def _split(self) -> None:
        while len(self._messages) >= 5:
            size = 5 + struct.unpack_from(">I", self._messages, 1)[0]
            if len(self._messages) < size:
                return
            self.packets.append(p.decode(self._messages[5:size]))
            self._messages = self._messages[size:]

    def _flush(self) -> None:
        if out := self._h2.data_to_send():
            self._sock.sendall(out)

    # --- bytes

    def send(self, data: bytes) -> None:
        for at in range(0, len(data), 32768):
            self.send_packet(p.Data(self.connect_id, data[at : at + 32768]))

    def recv(self, size: int = 65536) -> bytes:
        while not self._received and self.close_error is None:
            packet = self.next_packet()
            if packet is None:
                return b""
            if isinstance(packet, p.CloseResponse):
                self.close_error = packet.error
            elif isinstance(packet, p.Data):
                self._received = packet.data
        data, self._received = self._received[:size], self._received[size:]
        return data

    def close(self) -> None:
        """As kube-apiserver does it: CLOSE_REQ, and the stream ends behind the CLOSE_RSP."""
        try:
            if self.connect_id and self.close_error is None and not self.over:
                self.send_packet(p.CloseRequest(self.connect_id))
                while self.close_error is None and not self.over:
                    self._received = b""
                    self.recv()
        except OSError:
            pass
        self._sock.close()

    def abandon(self) -> None:
        """As a caller that dies does it."""
        self._sock.close()


# --- what callers do with a tunnel


def receive(tunnel: Tunnel, size: int) -> bytes:
    """Exactly `size` bytes, or what came before the end."""
    parts = []
    while size:
        data = tunnel.recv(min(size, 1 << 20))
        if not data:
            break
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def receive_all(tunnel: Tunnel) -> bytes:
    parts = []
    while data := tunnel.recv():
        parts.append(data)
    return b"".join(parts)


def http_request(tunnel: Tunnel, path: str, body: bytes | None = None) -> bytes:
    """One HTTP/1.1 request on a kept-alive connection; the body of the answer."""
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: endpoint\r\n"
    if body is not None:
        head += f"Content-Length: {len(body)}\r\n"
    tunnel.send(head.encode() + b"\r\n" + (body or b""))
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = tunnel.recv()
        if not data:
            raise ConnectionError(f"the tunnel ended after {answer!r}")
        answer += data
    head_bytes, _, start = answer.partition(b"\r\n\r\n")
    assert head_bytes.startswith(b"HTTP/1.1 200"), head_bytes
    found = re.search(rb"(?i)content-length: (\d+)", head_bytes)
    assert found, head_bytes
    return start + receive(tunnel, int(found[1]) - len(start))


def fetch(server: Server, address: str, path: str = "/hello") -> bytes:
    """A connection for one request."""
    tunnel = dial(server, address)
    try:
        return http_request(tunnel, path)
    finally:
        tunnel.close()
