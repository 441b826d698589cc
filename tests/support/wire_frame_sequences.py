"""Hypothesis strategies for the bytes of an HTTP/2 peer: valid frame sequences and damaged ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import hpack
from hypothesis import strategies as st

from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.frame_reader import FRAME_BYTES_MAX
from bootbridge.wire.hpack_headers import HEADER_LIST_BYTES_MAX, Headers
from bootbridge.wire.http2_connection import Http2Connection, Stream
from tests.support.wire_peers import REQUEST, RESPONSE, Event, Recorder

STREAMS = 4  # how many requests a client under test has open before the first byte arrives

Step = tuple[str, int, int, bytes]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["open", "data", "data", "end", "reset", "ping", "settings", "window", "priority", "unknown"]
        ),
        st.integers(0, STREAMS - 1),  # which stream
        st.integers(0, 255),  # selects a variant of the step
        st.binary(max_size=40),  # content
    ),
    max_size=20,
)


@dataclass
class FrameSequence:
    """Encodes steps as the bytes of a valid peer; steps that are invalid at their place are skipped."""

    client: bool
    encoder: hpack.Encoder = field(default_factory=hpack.Encoder)
    out: bytearray = field(default_factory=bytearray)
    opened: list[int] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)
    next_id: int = 1

    def encode(self, steps: Iterable[Step]) -> bytes:
        if self.client:
            self.out += f.PREFACE
        self.out += f.settings({})
        for name, which, choice, content in steps:
            getattr(self, name)(which, choice, content)
        return bytes(self.out)

    def _stream(self, which: int) -> int | None:
        stream_id = self.opened[which] if which < len(self.opened) else 0
        return stream_id if stream_id in self.alive else None

    def open(self, which: int, choice: int, content: bytes) -> None:
        """Opens the next stream: a client sends a request, a server a response, up to ``STREAMS``."""
        if not self.client and self.next_id >= 2 * STREAMS:
            return
        stream_id, self.next_id = self.next_id, self.next_id + 2
        self.opened.insert(0, stream_id)
        self.alive.add(stream_id)
        first = REQUEST if self.client else RESPONSE
        self._headers(stream_id, choice, (*first, ("x-content", content.hex())), end=False)

    def _headers(self, stream_id: int, choice: int, headers: Headers, *, end: bool) -> None:
        """One header block: perhaps padded, with priority, or cut in two or three."""
        block = self.encoder.encode(list(headers), huffman=bool(choice & 1))
        flags = f.END_STREAM if end else 0
        cuts = [block]
        if choice & 2:
            cuts = [block[:3], block[3:9], block[9:]]
        first = cuts[0]
        if choice & 4:
            first = bytes(4) + b"\x10" + first
            flags |= f.PRIORITISED
        if choice & 8:
            first = b"\x02" + first + bytes(2)
            flags |= f.PADDED
        for index, part in enumerate([first, *cuts[1:]]):
            last = f.END_HEADERS if index == len(cuts) - 1 else 0
            kind = f.CONTINUATION if index else f.HEADERS
            self.out += f.frame(kind, (0 if index else flags) | last, stream_id, part)

    def data(self, which: int, choice: int, content: bytes) -> None:
        stream_id = self._stream(which)
        if stream_id is not None:
            body = content * (1 + 50 * (choice & 3))
            if choice & 4:
                self.out += f.frame(f.DATA, f.PADDED, stream_id, b"\x03" + body + bytes(3))
            else:
                self.out += f.frame(f.DATA, 0, stream_id, body)

    def end(self, which: int, choice: int, content: bytes) -> None:
        stream_id = self._stream(which)
        if stream_id is None:
            return
        self.alive.discard(stream_id)
        if choice & 16:
            self.out += f.frame(f.DATA, f.END_STREAM, stream_id, content)
        else:
            self._headers(stream_id, choice, grpc.trailers(choice % 17, content.hex()), end=True)

    def reset(self, which: int, choice: int, content: bytes) -> None:
        stream_id = self._stream(which)
        if stream_id is not None:
            self.alive.discard(stream_id)
            self.out += f.rst_stream(stream_id, choice % 14)

    def ping(self, which: int, choice: int, content: bytes) -> None:
        self.out += f.frame(f.PING, choice & 1, 0, content[:8].ljust(8, b"."))

    def settings(self, which: int, choice: int, content: bytes) -> None:
        if choice & 1:
            self.out += f.frame(f.SETTINGS, f.ACK, 0)
        else:
            self.out += f.settings({f.INITIAL_WINDOW_SIZE: choice * 1000, f.MAX_FRAME_SIZE: 16384 + choice})

    def window(self, which: int, choice: int, content: bytes) -> None:
        self.out += f.window_update(self._stream(which) or 0, 1 + choice)

    def priority(self, which: int, choice: int, content: bytes) -> None:
        self.out += f.frame(f.PRIORITY, 0, 2 * choice + 1, bytes(5))

    def unknown(self, which: int, choice: int, content: bytes) -> None:
        self.out += f.frame(10 + choice % 200, choice, which, content)


valid_from_client = steps.map(lambda sequence: FrameSequence(client=True).encode(sequence))
valid_from_server = steps.map(lambda sequence: FrameSequence(client=False).encode(sequence))

any_frame = st.builds(
    f.frame,
    st.one_of(st.integers(0, 10), st.integers(0, 255)),
    st.one_of(st.sampled_from([0, 1, 4, 5, 8, 0x20]), st.integers(0, 255)),
    st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)),
    st.one_of(st.sampled_from([bytes(4), bytes(5), bytes(6), bytes(8)]), st.binary(max_size=30)),
)


def damaged(valid: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Returns a strategy for valid streams with foreign bytes in them, truncated ones, and random bytes."""
    foreign = st.one_of(any_frame, st.lists(any_frame, max_size=5).map(b"".join), st.binary(max_size=12))
    return st.one_of(
        st.builds(_overwritten, valid, st.integers(0, 5000), foreign),
        st.builds(lambda first, more: first + more, valid, foreign),
        st.builds(lambda data, at: data[: at % (len(data) + 1)], valid, st.integers(0, 5000)),
        st.builds(lambda more: f.PREFACE + f.settings({}) + b"".join(more), st.lists(any_frame, max_size=8)),
        st.builds(lambda more: f.settings({}) + b"".join(more), st.lists(any_frame, max_size=8)),
        st.binary(max_size=60),
    )


def _overwritten(data: bytes, at: int, foreign: bytes) -> bytes:
    at %= len(data) + 1
    return data[:at] + foreign + data[at + len(foreign) // 2 :]


# --- receiving

Received = tuple[list[Event], bytes, str | None, list[int]]


def receive_as_server(pieces: Iterable[bytes]) -> Received:
    """Returns the events, output, error and open streams of a server connection after these bytes."""
    events: list[Event] = []

    def on_request(stream: Stream, headers: Headers) -> Recorder:
        events.append((stream.id, "request", tuple(headers)))
        return Recorder(events, stream.id)

    return _receive(Http2Connection(client=False, on_request=on_request, streams_max=8), pieces, events)


def receive_as_client(pieces: Iterable[bytes]) -> Received:
    """Returns the same for a client connection that has ``STREAMS`` requests open."""
    events: list[Event] = []
    connection = Http2Connection(client=True)
    for _ in range(STREAMS):
        connection.open_stream(REQUEST, lambda stream: Recorder(events, stream.id))
    return _receive(connection, pieces, events)


def _receive(connection: Http2Connection, pieces: Iterable[bytes], events: list[Event]) -> Received:
    connection.on_pong = lambda: events.append((0, "pong"))
    connection.on_goaway = lambda code, text: events.append((0, "goaway", code, text))
    for piece in pieces:
        # The caller may reuse its buffer at once: nothing may be read from it later.
        buffer = bytearray(piece)
        connection.receive(buffer)
        buffer[:] = b"\xa5" * len(buffer)
        assert held_bytes(connection) <= HELD_BYTES_MAX
    return (
        _joined(event for event in events if event[1] != "ready"),
        b"".join(connection.out),
        str(connection.error) if connection.error else None,
        sorted(connection.streams),
    )


def _joined(events: Iterable[Event]) -> list[Event]:
    """With the content of one stream in one event: a frame's content is passed on as it arrives."""
    joined: list[Event] = []
    for event in events:
        if event[1] == "data" and joined and joined[-1][:2] == event[:2]:
            joined[-1] = (*event[:2], joined[-1][2] + event[2])
        else:
            joined.append(event)
    return joined


# An incomplete frame and an incomplete header block.
HELD_BYTES_MAX = f.HEADER_SIZE + FRAME_BYTES_MAX + HEADER_LIST_BYTES_MAX


def held_bytes(connection: Http2Connection) -> int:
    """Returns how many received bytes a connection still holds."""
    return connection._reader.held_bytes + (connection._block.size if connection._block else 0)
