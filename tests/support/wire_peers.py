"""Handlers that record or echo, and two connections joined in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.frame_reader import FRAME_BYTES_MAX
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Http2Connection, Stream, StreamHandler
from bootbridge.wire.packets import Buffer

REQUEST = grpc.request_headers("/Test/Call", "tunnel")
RESPONSE = grpc.response_headers()

Event = tuple[Any, ...]


class Recorder:
    """A stream handler that records every call with copies of its arguments."""

    def __init__(
        self, events: list[Event] | None = None, name: object = None, stream: Stream | None = None
    ) -> None:
        self.events: list[Event] = [] if events is None else events
        self.stream = stream
        self._name = () if name is None else (name,)

    def _note(self, *event: object) -> None:
        self.events.append((*self._name, *event))

    def on_headers(self, headers: Headers, end: bool) -> None:
        self._note("headers", tuple(headers), end)

    def on_data(self, buffer: Buffer, start: int, end: int) -> None:
        self._note("data", bytes(buffer[start:end]))

    def on_end(self) -> None:
        self._note("end")

    def on_reset(self, code: int, reason: str) -> None:
        self._note("reset", code, reason)

    def on_ready(self) -> None:
        self._note("ready")

    # --- queries for tests

    def names(self) -> list[str]:
        return [event[0] for event in self.events if event[0] != "ready"]

    def all_of(self, name: str) -> list[Event]:
        return [event[1:] for event in self.events if event[0] == name]

    def data(self) -> bytes:
        return b"".join(event[1] for event in self.events if event[0] == "data")


class Caller:
    """A handler for either role: whole messages in, messages out as fast as the windows admit."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.headers: list[tuple[Headers, bool]] = []
        self.messages: list[bytes] = []
        self.ended = False
        self.reset: tuple[int, str] | None = None
        self.sent = 0
        self._reader = grpc.MessageReader(self._on_message)
        self._queue: deque[bytes] = deque()
        self._finish: Callable[[Stream], None] | None = None

    def bind(self, stream: Stream) -> Self:
        self.stream = stream
        return self

    def send(self, *messages: bytes) -> None:
        self._queue.extend(messages)
        self.on_ready()

    def finish(self, how: Callable[[Stream], None]) -> None:
        """Do ``how`` to the stream once every message has been handed to it."""
        self._finish = how
        self.on_ready()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def on_ready(self) -> None:
        stream = self.stream
        assert stream is not None
        while self._queue and stream.ready:
            message = self._queue.popleft()
            self.sent += 1
            stream.send(grpc.message_prefix(len(message)), message)
        if not self._queue and self._finish is not None and not stream.local_closed:
            finish, self._finish = self._finish, None
            finish(stream)

    def on_headers(self, headers: Headers, end: bool) -> None:
        self.headers.append((tuple(headers), end))

    def on_data(self, buffer: Buffer, start: int, end: int) -> None:
        self._reader.receive(buffer, start, end)

    def _on_message(self, buffer: Buffer, start: int, end: int) -> None:
        self.messages.append(bytes(buffer[start:end]))
        self.on_message(self.messages[-1])

    def on_message(self, message: bytes) -> None: ...

    def on_end(self) -> None:
        self.ended = True

    def on_reset(self, code: int, reason: str) -> None:
        self.reset = (code, reason)

    @property
    def status(self) -> tuple[int, str]:
        """Status and message of the trailers (client side)."""
        assert self.headers, "nothing was answered"
        assert self.headers[-1][1], "no trailers came"
        return grpc.status_of(self.headers[-1][0])


class Echo(Caller):
    """A server's handler: answers every message with itself, and ends when the client does."""

    def on_headers(self, headers: Headers, end: bool) -> None:
        super().on_headers(headers, end)
        assert self.stream is not None
        if len(self.headers) == 1:
            self.stream.send_headers(RESPONSE)

    def on_message(self, message: bytes) -> None:
        self.send(message)

    def on_end(self) -> None:
        super().on_end()
        self.finish(lambda stream: stream.send_headers(grpc.trailers(grpc.OK), end=True))


class Wire:
    """A client connection and a server connection, and the bytes between them.

    Every byte that crosses is checked: no frame is larger than its receiver allowed, and
    no stream or connection window is overrun, counted independently of the implementation.
    """

    def __init__(
        self,
        on_request: Callable[[Stream, Headers], StreamHandler] | None = None,
        *,
        piece: int = 0,
        streams_max: int = 1000,
    ) -> None:
        self.requests: list[Stream] = []
        self._on_request = on_request
        self.client = Http2Connection(client=True)
        self.server = Http2Connection(client=False, on_request=self._request, streams_max=streams_max)
        self.piece = piece
        self.window_checks = {id(self.client): WindowCheck(), id(self.server): WindowCheck()}

    def _request(self, stream: Stream, headers: Headers) -> StreamHandler:
        self.requests.append(stream)
        if self._on_request is not None:
            return self._on_request(stream, headers)
        return Recorder()

    def call(self, handler: Caller | None = None, headers: Headers = REQUEST) -> Caller:
        return self.client.open_stream(headers, (handler or Caller()).bind)

    def record(self, headers: Headers = REQUEST) -> tuple[Stream, Recorder]:
        recorder = self.client.open_stream(headers, lambda stream: Recorder(stream=stream))
        assert recorder.stream is not None
        return recorder.stream, recorder

    def deliver(self) -> None:
        """Moves bytes in both directions until neither side has more."""
        while self.deliver_once():
            pass

    def deliver_once(self) -> bool:
        moved = self._move(self.client, self.server)
        return self._move(self.server, self.client) or moved

    def _move(self, source: Http2Connection, target: Http2Connection) -> bool:
        data = take(source)
        self.window_checks[id(source)].sent(data, self.window_checks[id(target)])
        for piece in pieces(data, self.piece):
            target.receive(piece)
        return bool(data)


def take(connection: Http2Connection, writable: bool = True) -> bytes:
    """Takes the connection's output as one string, and marks it as flushed."""
    data = b"".join(connection.take_output())
    connection.flushed(writable)
    return data


def pieces(data: bytes, size: int) -> Iterable[bytes]:
    if not size:
        return [data] if data else []
    return [data[at : at + size] for at in range(0, len(data), size)]


def split_frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(type, flags, stream id, payload) of each frame in ``data``, which must hold whole frames."""
    data = data.removeprefix(f.PREFACE)
    found = []
    while data:
        size = int.from_bytes(data[:3], "big")
        assert len(data) >= 9 + size, "not a whole frame"
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def kinds(data: bytes) -> list[int]:
    return [kind for kind, _, _, _ in split_frames(data)]


class WindowCheck:
    """Counts one sender's windows from the bytes alone, by RFC 9113, section 6.9."""

    def __init__(self) -> None:
        self.connection_window = f.DEFAULT_WINDOW
        self.initial = f.DEFAULT_WINDOW
        self.spent: dict[int, int] = {}
        self.granted: dict[int, int] = {}

    def sent(self, data: bytes, other: WindowCheck) -> None:
        for kind, flags, stream_id, payload in split_frames(data):
            assert len(payload) <= FRAME_BYTES_MAX
            if kind == f.DATA:
                self._spend(stream_id, len(payload))
            elif kind == f.WINDOW_UPDATE:
                other._grant(stream_id, int.from_bytes(payload, "big"))
            elif kind == f.SETTINGS and not flags & f.ACK:
                for at in range(0, len(payload), 6):
                    if payload[at : at + 2] == b"\x00\x04":
                        other.initial = int.from_bytes(payload[at + 2 : at + 6], "big")

    def _spend(self, stream_id: int, size: int) -> None:
        self.connection_window -= size
        self.spent[stream_id] = self.spent.get(stream_id, 0) + size
        left = self.initial + self.granted.get(stream_id, 0) - self.spent[stream_id]
        assert size == 0 or (left >= 0 and self.connection_window >= 0), (
            f"window of stream {stream_id} overrun"
        )

    def _grant(self, stream_id: int, size: int) -> None:
        if stream_id:
            self.granted[stream_id] = self.granted.get(stream_id, 0) + size
        else:
            self.connection_window += size
