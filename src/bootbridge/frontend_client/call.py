"""One dial and its connection, without I/O, in the two protocols of a frontend.

`receive` takes bytes of the server, `take_output` returns bytes for it. Until the destination has answered,
`receive` and `receive_end` raise DialError; later problems are in `error`.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Final

from bootbridge.errors import PeerError
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream

# Received bytes that were not taken yet; above this the server has to wait.
UNREAD_BYTES_MAX: Final = 1024 * 1024
ANSWER_BYTES_MAX: Final = 64 * 1024
PROXY_PATH: Final = "/ProxyService/Proxy"
_HTTP1: Final = b"HTTP/1."


class FrontendMode(StrEnum):
    """The values of `proxy-server --mode`."""

    GRPC = "grpc"
    HTTP_CONNECT = "http-connect"


class DialError(Exception):
    """The dial failed; the text is the reason, by the server or the agent where they gave one.

    ``status``: the status line of an HTTP answer.
    """

    def __init__(self, reason: str, status: str = "") -> None:
        super().__init__(reason)
        self.status = status


class ProtocolMismatchError(DialError):
    """The server uses the other protocol on its frontend."""


class TunnelCall(ABC):
    half_closes = False  # whether the end of our data can be sent to the destination

    def __init__(self) -> None:
        self.connected = False  # the destination has accepted
        self.refused = False  # the answer is an error, and may be incomplete
        self.ended = False  # nothing more will be received
        self.error = ""  # why the connection ended, if not in order
        self._received = bytearray()

    @abstractmethod
    def receive(self, data: bytes) -> None: ...

    @abstractmethod
    def receive_end(self) -> None:
        """The server has closed the connection."""

    @abstractmethod
    def take_output(self) -> bytes: ...

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Sends bytes to the destination; only while `ready`."""

    @property
    def ready(self) -> bool:
        return not self.ended

    @property
    def wants_input(self) -> bool:
        """Whether the caller should go on reading from the socket."""
        return True

    def take_received(self) -> bytes:
        data, self._received = bytes(self._received), bytearray()
        return data

    @abstractmethod
    def end(self) -> None:
        """No more bytes are wanted; the caller sends the output and closes the connection."""


class ConnectCall(TunnelCall):
    """HTTP CONNECT; behind the head of the answer are the bytes of the connection."""

    half_closes = True

    def __init__(self, address: str) -> None:
        super().__init__()
        self._output = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
        self._answer = b""
        self._status = ""

    def receive(self, data: bytes) -> None:
        if self.connected:
            self._received += data
            return
        self._answer += data
        if not self._answer[: len(_HTTP1)].startswith(_HTTP1[: len(self._answer)]):
            raise ProtocolMismatchError("the server does not use HTTP/1.1: it has --mode=grpc")
        head, complete, rest = self._answer.partition(b"\r\n\r\n")
        if not complete:
            if len(self._answer) > ANSWER_BYTES_MAX:
                raise DialError("the server's answer has no end")
            return
        self._status = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")[2]
        self.connected = self._status.startswith("200")
        self.refused = not self.connected
        if self.connected:
            self._received += rest
        elif len(rest) >= min(_content_length(head), ANSWER_BYTES_MAX):
            self.receive_end()

    def receive_end(self) -> None:
        self.ended = True
        if self.refused:
            _, _, body = self._answer.partition(b"\r\n\r\n")
            text = " ".join(body.decode("utf-8", "replace").split())
            raise DialError(text or self._status, self._status)
        if not self.connected:
            raise DialError("the server closed the connection without a response")

    def take_output(self) -> bytes:
        output, self._output = self._output, b""
        return output

    def send(self, data: bytes) -> None:
        self._output += data

    def end(self) -> None:
        self.ended = True

    @property
    def ready(self) -> bool:
        """The destination may have ended its direction only."""
        return not self.error

    @property
    def wants_input(self) -> bool:
        return len(self._received) < UNREAD_BYTES_MAX


def _content_length(head: bytes) -> int:
    """Returns the length of the body; without the header, or an invalid one, it ends with the connection."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    return ANSWER_BYTES_MAX


class GrpcCall(TunnelCall):
    """One Proxy stream: DIAL_REQ, DIAL_RSP, then DATA in both directions, and CLOSE_REQ at the end."""

    def __init__(self, address: str, *, scheme: str = "http") -> None:
        super().__init__()
        self._http2 = Http2Connection(client=True)
        headers = grpc.request_headers(PROXY_PATH, "localhost", scheme=scheme)
        self._stream = self._http2.open_stream(headers, lambda stream: _Inbox(stream, self)).stream
        self._id = 0
        self._first = b""
        self._send_packet(p.DialRequest("tcp", address, secrets.randbits(62)))

    def receive(self, data: bytes) -> None:
        if len(self._first) < len(_HTTP1):
            self._first += data[: len(_HTTP1)]
            if self._first.startswith(_HTTP1):
                raise ProtocolMismatchError("the server uses HTTP/1.1: it has --mode=http-connect")
        self._http2.receive(data)
        self._check_answer()

    def receive_end(self) -> None:
        self._http2.lost("the server closed the connection")
        self._stop("the server closed the connection")
        self._check_answer()

    def _check_answer(self) -> None:
        if self.ended and not self.connected:
            raise DialError(self.error)

    def take_output(self) -> bytes:
        output = b"".join(self._http2.take_output())
        self._http2.flushed(True)
        return output

    def send(self, data: bytes) -> None:
        self._send_packet(p.Data(self._id, data))

    @property
    def ready(self) -> bool:
        return self._stream.ready and not self.ended

    def take_received(self) -> bytes:
        data = super().take_received()
        if data:
            self._stream.resume_reading()
        return data

    def end(self) -> None:
        if self.connected and not self.ended and not self._stream.has_tail:
            self._send_packet(p.CloseRequest(self._id))
        self.ended = True

    def _send_packet(self, packet: p.Packet) -> None:
        body = p.encode(packet)
        self._stream.send(grpc.message_prefix(len(body)) + body)

    # --- from the stream

    def on_packet(self, packet: p.Packet) -> None:
        match packet:
            case p.DialResponse() if not self.connected:
                if packet.error:
                    self._stop(packet.error)
                else:
                    self.connected, self._id = True, packet.connect_id
            case p.Data() if self.connected and packet.connect_id == self._id:
                self._received += packet.data
                if len(self._received) > UNREAD_BYTES_MAX:
                    self._stream.pause_reading()
            case p.CloseResponse() if self.connected and packet.connect_id == self._id:
                self._stop(packet.error)
            case _ if not self.connected:
                self._stop(f"the server answered {packet}")

    def on_stream_ended(self, reason: str) -> None:
        self._stop(reason)

    def _stop(self, error: str) -> None:
        if not self.ended:
            self.ended, self.error = True, error


class _Inbox:
    """Reads the packets of one stream."""

    def __init__(self, stream: Stream, call: GrpcCall) -> None:
        self.stream = stream
        self._call = call
        self._reader = grpc.MessageReader(self._on_message)

    def on_headers(self, headers: Headers, end: bool) -> None:
        if end:
            self._call.on_stream_ended(grpc.status_of(headers)[1] or "the server ended the stream")

    def on_data(self, buffer: p.Buffer, start: int, end: int) -> None:
        try:
            self._reader.receive(buffer, start, end)
        except PeerError as error:
            self._call.on_stream_ended(f"invalid packet from the server: {error}")

    def _on_message(self, buffer: p.Buffer, start: int, end: int) -> None:
        self._call.on_packet(p.decode(bytes(memoryview(buffer)[start:end])))

    def on_end(self) -> None:
        self._call.on_stream_ended("the server ended the stream")

    def on_reset(self, code: int, reason: str) -> None:
        self._call.on_stream_ended(reason or f"the server reset the stream ({code})")

    def on_ready(self) -> None: ...
