"""One HTTP/2 stream: flow-control windows, two half-closed flags, and at most one unsent message.

Sending: ``Stream.send`` takes one message at a time. Bytes beyond the windows stay in the stream as
its *tail*, and ``ready`` is False until the tail is sent. So a stream never holds more than one
message, and its owner does the queueing.
Receiving: the stream returns its window as bytes arrive, except while it is paused. A pause stops
the sender of this stream only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from bootbridge.bounds import BOUNDS
from bootbridge.wire import frames as f
from bootbridge.wire.frames import HEADER
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.packets import Buffer

if TYPE_CHECKING:
    from bootbridge.wire.http2_connection import Http2Connection


class StreamHandler(Protocol):
    """Callbacks of a stream to its owner."""

    def on_headers(self, headers: Headers, end: bool) -> None: ...
    def on_data(self, buffer: Buffer, start: int, end: int) -> None: ...
    def on_end(self) -> None: ...
    def on_reset(self, code: int, reason: str) -> None: ...
    def on_ready(self) -> None: ...


# A message head up to this size fits into any frame: the smallest frame limit is 16 KiB.
FRAME_HEAD_BYTES_MAX: Final = 1024

Handler = TypeVar("Handler", bound=StreamHandler)


class Stream:
    __slots__ = (
        "_after_tail",
        "_tail",
        "_unreturned",
        "body_expected",
        "connection",
        "got_headers",
        "handler",
        "id",
        "local_closed",
        "paused",
        "receive_window",
        "remote_closed",
        "window",
    )

    def __init__(self, connection: Http2Connection, stream_id: int, handler: StreamHandler) -> None:
        self.connection = connection
        self.id = stream_id
        self.handler = handler
        self.window = connection.peer_initial_window
        self.receive_window = connection.stream_window
        self.local_closed = False
        self.remote_closed = False
        self.got_headers = False
        self.paused = False
        self.body_expected: int | None = None
        self._unreturned = 0
        self._tail: memoryview | None = None
        self._after_tail: tuple[Headers, bool] | None = None

    def __repr__(self) -> str:
        state = f"{'-' if self.local_closed else 'L'}{'-' if self.remote_closed else 'R'}"
        return f"<Stream {self.id} {state} window {self.window}>"

    @property
    def ready(self) -> bool:
        """Whether the next message can be sent now, at least in part."""
        connection = self.connection
        return (
            self._tail is None
            and connection.writable
            and self.window > 0
            and connection.window > 0
            and connection.out_size < BOUNDS.http2_output
            and not self.local_closed
        )

    @property
    def has_tail(self) -> bool:
        """Whether part of the last message waits for the peer's window."""
        return self._tail is not None

    # --- sending

    def send(self, head: bytes, payload: Buffer = b"") -> None:
        """Sends one message, given in two parts. The stream must be ``ready``, or without a tail."""
        connection = self.connection
        size = len(head) + len(payload)
        if (
            self._tail is None
            and size <= self.window
            and size <= connection.window
            and size <= connection.peer_frame_max
        ):
            self.window -= size
            connection.window -= size
            connection.data_frames += 1
            if not connection.flush_requested:
                connection.request_flush()
            out = connection.out
            out.append(HEADER.pack(size >> 16, size & 0xFFFF, f.DATA, 0, self.id) + head)
            if payload:
                out.append(payload)
            connection.out_size += size
            return
        assert self._tail is None, "one message at a time: ask ready first"
        if size <= self.window and size <= connection.window:
            self._push_frames(head, payload)
            return
        self._tail = memoryview(b"".join((head, payload)))
        self.push_tail()

    def _push_frames(self, head: bytes, payload: Buffer) -> None:
        """Joins several frames in one buffer, which is the only copy of their bytes. grpc-go takes at most
        16 KiB per frame, and a header apart from its payload would become a TLS record of its own."""
        if len(head) > FRAME_HEAD_BYTES_MAX:
            head, payload = b"", b"".join((head, payload))
        connection = self.connection
        size = len(head) + len(payload)
        self.window -= size
        connection.window -= size
        connection.data_frames += 1
        view = memoryview(payload)
        if size <= connection.peer_frame_max:
            connection.push(HEADER.pack(size >> 16, size & 0xFFFF, f.DATA, 0, self.id) + head)
            connection.push(view)
            return
        parts: list[Buffer] = []
        at = 0
        while size:
            length = min(size, connection.peer_frame_max)
            end = at + length - len(head)
            parts += (HEADER.pack(length >> 16, length & 0xFFFF, f.DATA, 0, self.id), head, view[at:end])
            head = b""
            at = end
            size -= length
        connection.push(b"".join(parts))

    def push_tail(self) -> bool:
        """Sends as much of the tail as the windows permit; True if none is left."""
        tail = self._tail
        if tail is None:
            return True
        size = min(len(tail), self.window, self.connection.window)
        if size > 0:
            self._push_frames(b"", tail[:size])
            tail = tail[size:]
        if tail:
            self._tail = tail
            return False
        self._tail = None
        if self._after_tail is not None:
            headers, end = self._after_tail
            self._after_tail = None
            self.send_headers(headers, end=end)
        return True

    def end(self) -> None:
        """Half-closes behind everything sent so far. For clients: servers end with trailers."""
        self.send_headers((), end=True)

    def drop_tail(self) -> None:
        self._tail = None

    def send_headers(self, headers: Headers, *, end: bool = False) -> None:
        if self._tail is not None:
            self._after_tail = (headers, end)
            return
        connection = self.connection
        if headers:
            # A server's first headers can wait for its first message.
            connection.push_headers(self.id, headers, end, deferred=not (end or connection.client))
        else:
            connection.push(f.frame(f.DATA, f.END_STREAM, self.id))
        if end:
            self.local_closed = True
            if not self.remote_closed and not connection.client:
                # The call is over before the client has ended its half.
                connection.push(f.rst_stream(self.id, f.NO_ERROR))
                connection.forget(self, by_us=True)
            else:
                connection.forget_if_done(self)

    def reset(self, code: int) -> None:
        if not (self.local_closed and self.remote_closed):
            self.connection.push(f.rst_stream(self.id, code))
            self.connection.forget(self, by_us=True)

    # --- receiving

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        if self.paused:
            self.paused = False
            self.return_window(0)

    def grant(self, size: int) -> None:
        """Returns this much of the window although the stream is paused."""
        size = min(size, self._unreturned)
        if size > 0 and self.paused and not self.remote_closed:
            self._unreturned -= size
            self.receive_window += size
            self.connection.push(f.window_update(self.id, size))

    def return_window(self, size: int) -> None:
        self._unreturned += size
        if self.paused or self._unreturned < self.connection.stream_window // 4 or self.remote_closed:
            return
        self.connection.push(f.window_update(self.id, self._unreturned))
        self.receive_window += self._unreturned
        self._unreturned = 0


class NoHandler:
    """The handler of a stream before its owner is known."""

    def on_headers(self, headers: Headers, end: bool) -> None: ...
    def on_data(self, buffer: Buffer, start: int, end: int) -> None: ...
    def on_end(self) -> None: ...
    def on_reset(self, code: int, reason: str) -> None: ...
    def on_ready(self) -> None: ...


NO_HANDLER: Final = NoHandler()
