"""One HTTP/2 connection with gRPC streams, client or server, without I/O.

``receive`` takes bytes of the peer; ``take_output`` returns bytes to send. A server connection calls
``on_request`` for every new stream, and each ``Stream`` calls its ``StreamHandler``. Buffers passed
to handlers are valid only during the call.

It is written by hand because DATA frames are the hot path, and a general library spends 4-8 times
as long on each (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from bootbridge.bounds import BOUNDS
from bootbridge.wire import frames as f
from bootbridge.wire.closed_streams import ClosedStreams
from bootbridge.wire.data_frame import DataFrame
from bootbridge.wire.frame_reader import FRAME_BYTES_MAX, FrameReader
from bootbridge.wire.frames import HEADER, HEADER_SIZE, Http2ConnectionError, StreamError
from bootbridge.wire.header_block import HeaderBlock
from bootbridge.wire.hpack_headers import (
    HEADER_LIST_BYTES_MAX,
    NO_DYNAMIC_TABLE,
    Decoder,
    Headers,
    content_length,
    encode,
    request_fault,
    response_fault,
    trailers_fault,
)
from bootbridge.wire.http2_budgets import (
    EARLY_DATA,
    STREAM_ERROR,
    UNKNOWN_FRAME,
    WORK_BYTES,
    FrameBudget,
    Http2Budgets,
    check_settings_size,
    many_streams,
)
from bootbridge.wire.http2_stream import NO_HANDLER, Handler, Stream, StreamHandler
from bootbridge.wire.packets import Buffer

# Never a limit in practice: memory is bounded per stream and per route.
CONNECTION_WINDOW: Final = 2**30
# Replies (acks, resets) that may wait for a peer that does not read.
REPLIES_WAITING_MAX: Final = 1000
# Deferred frames that may wait for other output.
DEFERRED_FRAMES_MAX: Final = 8


class Http2Connection:
    """One HTTP/2 connection. When ``closed`` is True, its owner sends ``out`` and closes the socket."""

    def __init__(
        self,
        *,
        client: bool,
        on_request: Callable[[Stream, Headers], StreamHandler] | None = None,
        on_output: Callable[[], None] = lambda: None,
        on_deferred_output: Callable[[], None] = lambda: None,
        streams_max: int = 1000,
        header_bytes_max: int = HEADER_LIST_BYTES_MAX,
        budgets: Sequence[FrameBudget] = (),
        now: Callable[[], float] = lambda: 0.0,
        admits: bool = False,
    ) -> None:
        """``admits``: the application admits streams, and DATA before the first of them has a budget."""
        self.client = client
        self.out: list[Buffer] = []
        self.out_size = 0
        self.flush_requested = False
        self.writable = True
        self.closed = False
        self.error: Http2ConnectionError | None = None
        self.reads_seen = 0  # grows with every read: a sign that the peer is alive
        self.going_away = False
        self.peer_going_away = False
        self.window = f.DEFAULT_WINDOW
        self.peer_initial_window = f.DEFAULT_WINDOW
        self.peer_frame_max = f.DEFAULT_FRAME_MAX
        self.stream_window = BOUNDS.stream_window
        self.streams: dict[int, Stream] = {}
        # Streams that the application has admitted, after authentication; a connection without ends in time.
        self.admitted = 0
        self.on_admitted_change: Callable[[], None] = lambda: None
        self.on_pong: Callable[[], None] = lambda: None
        self.on_suspected: Callable[[], None] = lambda: None  # whether the peer lives: the owner finds out
        self.on_goaway: Callable[[int, str], None] = lambda code, text: None
        self._on_request = on_request
        self._on_output = on_output
        self._on_deferred_output = on_deferred_output
        self._streams_max = streams_max
        self._header_bytes_max = header_bytes_max
        self._budgets = Http2Budgets(budgets or many_streams(streams_max), now, self._work)
        self.data_frames = 0  # with content, in both directions
        self._window_received = f.DEFAULT_WINDOW  # all of it so far, used up or not
        self._window_returned = 0
        self._receive_window = CONNECTION_WINDOW
        self._decoder = Decoder(header_bytes_max)
        self._next_id = 1
        self._last_peer_id = 0
        self._closed_streams = ClosedStreams()
        self._block: HeaderBlock | None = None
        self._block_prefix = b""
        self._settings_due = True
        self._awaits_admission = admits
        self._data_is_checked = True  # before SETTINGS and before admission
        self._replies_waiting = 0
        self._reader = FrameReader(self._consume, preface=not client)
        self._data: DataFrame | None = None  # the one that is arriving
        self._send_preface()

    def _send_preface(self) -> None:
        values = {f.INITIAL_WINDOW_SIZE: self.stream_window, f.MAX_FRAME_SIZE: FRAME_BYTES_MAX}
        if self.client:
            self.push(f.PREFACE)
            values[f.ENABLE_PUSH] = 0
        else:
            values[f.MAX_CONCURRENT_STREAMS] = self._streams_max
            values[f.MAX_HEADER_LIST_SIZE] = self._header_bytes_max
        self.push(f.settings(values) + f.window_update(0, CONNECTION_WINDOW - f.DEFAULT_WINDOW))

    # --- output

    def push(self, data: Buffer) -> None:
        if not self.flush_requested:
            self.request_flush()
        self.out.append(data)
        self.out_size += len(data)

    def request_flush(self) -> None:
        self.flush_requested = True
        self._on_output()

    def push_deferred(self, data: bytes) -> None:
        """Queues a frame that the peer does not wait for: it is sent with the next output, or a little later.

        A Go peer pings behind nearly every message, to measure bandwidth. A separate reply would cost
        both ends another system call, and the peer another wake-up.
        """
        if not self.out:
            self._on_deferred_output()
        self.out.append(data)
        self.out_size += len(data)
        if len(self.out) >= DEFERRED_FRAMES_MAX and not self.flush_requested:
            self.request_flush()

    def take_output(self) -> list[Buffer]:
        """Returns the bytes to write now. The buffers are valid only until the next input."""
        out, self.out = self.out, []
        self.flush_requested = False
        return out

    def flushed(self, writable: bool) -> None:
        """The last output was passed to the socket; ``writable``: the socket can take more."""
        was_full = not self.writable or self.out_size >= BOUNDS.http2_output
        self.out_size = sum(map(len, self.out))
        self.writable = writable
        if writable and was_full:
            self._replies_waiting = 0
            self._wake_streams()

    def push_headers(self, stream_id: int, headers: Headers, end: bool, *, deferred: bool = False) -> None:
        block = self._block_prefix + encode(headers)
        self._block_prefix = b""
        flags = f.END_STREAM if end else 0
        kind = f.HEADERS
        while len(block) > self.peer_frame_max:
            self.push(f.frame(kind, flags, stream_id, block[: self.peer_frame_max]))
            block = block[self.peer_frame_max :]
            kind, flags = f.CONTINUATION, 0
        push = self.push_deferred if deferred else self.push
        push(f.frame(kind, flags | f.END_HEADERS, stream_id, block))

    def ping(self, opaque: bytes = b"bootbrdg") -> None:
        self.push(f.frame(f.PING, 0, 0, opaque))

    def count_admitted(self, change: int) -> None:
        self.admitted += change
        self._awaits_admission = False  # for good: DATA may be in flight when an admitted stream ends
        self._data_is_checked = self._settings_due
        self.on_admitted_change()

    def go_away(self, code: int = f.NO_ERROR, text: str = "") -> None:
        """Rejects new streams from now on. Open streams continue."""
        if not self.going_away:
            self.going_away = True
            self.push(f.goaway(self._last_peer_id, code, text))

    def open_stream(self, headers: Headers, handler_for: Callable[[Stream], Handler]) -> Handler:
        """Starts a request, and returns the handler that ``handler_for`` makes for its stream."""
        stream = Stream(self, self._next_id, NO_HANDLER)
        self._next_id += 2
        self.streams[stream.id] = stream
        self.push_headers(stream.id, headers, False)
        handler = handler_for(stream)
        stream.handler = handler
        return handler

    def lost(self, reason: str) -> None:
        """Closes the connection and resets every stream."""
        self.closed = True
        self._reader.drop()
        for stream in list(self.streams.values()):
            self.forget(stream, by_us=True)
            stream.handler.on_reset(f.CANCEL, reason)

    # --- streams

    def forget_if_done(self, stream: Stream) -> None:
        if stream.local_closed and stream.remote_closed:
            self.forget(stream, by_us=False)

    def forget(self, stream: Stream, *, by_us: bool) -> None:
        window = stream.receive_window if by_us and not stream.remote_closed else 0
        stream.local_closed = stream.remote_closed = True
        stream.drop_tail()
        if self.streams.pop(stream.id, None) is not None:
            self._closed_streams.remember(stream.id, by_us, window)

    def _wake_streams(self) -> None:
        """Lets the streams send, the one that has waited longest first."""
        streams = self.streams
        for stream in list(streams.values()):
            if self.window <= 0 or not self.writable or self.out_size >= BOUNDS.http2_output:
                return
            if len(streams) > 1 and stream.id in streams:
                streams[stream.id] = streams.pop(stream.id)  # to the end of the queue
            if stream.push_tail():
                stream.handler.on_ready()

    # --- input

    def receive(self, data: Buffer) -> None:
        """Takes bytes of the peer. Never raises: a protocol error closes the connection."""
        if self.closed:
            return
        self.reads_seen += 1
        try:
            self._reader.receive(memoryview(data))
        except Http2ConnectionError as error:
            self._fail(error)

    def _fail(self, error: Http2ConnectionError) -> None:
        self.error = error
        self.push(f.goaway(self._last_peer_id, error.code, str(error)))
        self.lost(f"protocol error: {error}")

    def _consume(self, data: memoryview) -> int:
        """Handles whole frames, and DATA as it arrives; returns where the first partial frame begins."""
        at = 0
        size = len(data)
        streams = self.streams
        while not self.closed:
            frame = self._data
            if frame is not None:
                at = frame.take(data, at)
                if not frame.complete:
                    return at
                self._end_data(frame)
                continue
            if size - at < HEADER_SIZE:
                return at
            high, low, kind, flags, stream_id = HEADER.unpack_from(data, at)
            length: int = high << 16 | low
            end = at + HEADER_SIZE + length
            if length > FRAME_BYTES_MAX:
                return at
            if kind == 0:
                if end <= size and not flags and length and self._block is None and not self._data_is_checked:
                    stream = streams.get(stream_id)
                    if stream is not None and not stream.remote_closed and stream.got_headers:
                        self.data_frames += 1
                        self._receive_window -= length
                        stream.receive_window -= length
                        if stream.receive_window < 0:
                            self._check_window(stream)
                        if stream.body_expected is not None:
                            stream.body_expected -= length
                        stream.handler.on_data(data, at + HEADER_SIZE, end)
                        stream.return_window(length)
                        if self._receive_window < CONNECTION_WINDOW // 2:
                            self._return_connection_window()
                        at = end
                        continue
                self._begin_data(flags, stream_id & 0x7FFFFFFF, length)
                at += HEADER_SIZE
            elif end <= size:
                self._frame(kind, flags, stream_id & 0x7FFFFFFF, data[at + HEADER_SIZE : end])
                at = end
            else:
                return at
        return size

    def _return_connection_window(self) -> None:
        self.push(f.window_update(0, CONNECTION_WINDOW - self._receive_window))
        self._window_returned += CONNECTION_WINDOW - self._receive_window
        self._receive_window = CONNECTION_WINDOW

    def _work(self) -> int:
        """Returns how much DATA was transferred, in the unit of the budgets."""
        sent = self._window_received - self.window
        received = self._window_returned + CONNECTION_WINDOW - self._receive_window
        return self.data_frames + (sent + received) // WORK_BYTES

    def _frame(self, kind: int, flags: int, stream_id: int, payload: memoryview) -> None:
        self._check_order(kind, flags, stream_id)
        handler = _FRAME_HANDLERS.get(kind)
        self._budgets.spend(kind if handler is not None else UNKNOWN_FRAME)
        if handler is None:
            return  # RFC 9113 requires to ignore unknown frame types
        try:
            f.check_shape(kind, flags, stream_id, len(payload))
            handler(self, flags, stream_id, payload)
        except StreamError as error:
            self._fail_stream(error)

    def _check_order(self, kind: int, flags: int, stream_id: int) -> None:
        if self._settings_due:
            if kind != f.SETTINGS or flags & f.ACK:
                raise Http2ConnectionError("the first frame must be SETTINGS", f.PROTOCOL_ERROR)
            self._settings_due = False
            self._data_is_checked = self._awaits_admission
        if self._block is not None and (kind != f.CONTINUATION or stream_id != self._block.stream_id):
            raise Http2ConnectionError("header block interrupted", f.PROTOCOL_ERROR)

    def _fail_stream(self, error: StreamError) -> None:
        self._budgets.spend(STREAM_ERROR)
        self._reply(f.rst_stream(error.stream_id, error.code))
        stream = self.streams.get(error.stream_id)
        if stream is not None:
            self.forget(stream, by_us=True)
            stream.handler.on_reset(error.code, str(error))
        else:
            self._closed_streams.remember(error.stream_id, True, self.stream_window)

    def _reply(self, data: bytes, *, deferred: bool = False) -> None:
        """Sends a reply that the peer provoked; fails if too many wait for a peer that does not read."""
        if not self.writable:
            self._replies_waiting += 1
            if self._replies_waiting > REPLIES_WAITING_MAX:
                raise Http2ConnectionError("too many unread replies", f.ENHANCE_YOUR_CALM)
        (self.push_deferred if deferred else self.push)(data)

    def _existing(self, stream_id: int, kind: str) -> Stream | None:
        """Returns the stream, or None if it is closed. Raises if it was never opened."""
        if stream_id == 0:
            raise Http2ConnectionError(f"{kind} on stream 0", f.PROTOCOL_ERROR)
        stream = self.streams.get(stream_id)
        if stream is None and self._is_idle(stream_id):
            raise Http2ConnectionError(f"{kind} on idle stream {stream_id}", f.PROTOCOL_ERROR)
        return stream

    def _is_idle(self, stream_id: int) -> bool:
        if (stream_id % 2 == 1) == self.client:
            return stream_id >= self._next_id
        return stream_id > self._last_peer_id

    def _was_open(self, stream_id: int) -> bool:
        """Whether a closed stream was once open, as far back as closed streams are remembered."""
        return self.client or stream_id in self._closed_streams

    # --- DATA

    def _begin_data(self, flags: int, stream_id: int, length: int) -> None:
        self._check_order(f.DATA, flags, stream_id)
        self._data = frame = DataFrame(flags, length)
        if self._awaits_admission:
            self._budgets.spend(EARLY_DATA)
        try:
            frame.stream = self._stream_of_data(stream_id, length)
        except StreamError as error:
            self._fail_stream(error)

    def _stream_of_data(self, stream_id: int, length: int) -> Stream | None:
        """Takes a frame from the windows; returns its stream, or None if its content is discarded."""
        stream = self._existing(stream_id, "DATA")
        self._receive_window -= length
        if self._receive_window < CONNECTION_WINDOW // 2:
            self._return_connection_window()
        if stream is None:
            self._closed_streams.check_late_data(stream_id, length)
            return None
        if stream.remote_closed:
            raise StreamError(stream_id, "DATA after END_STREAM", f.STREAM_CLOSED)
        if not stream.got_headers:
            raise StreamError(stream_id, "DATA before HEADERS", f.PROTOCOL_ERROR)
        stream.receive_window -= length
        self._check_window(stream)
        return stream

    def _end_data(self, frame: DataFrame) -> None:
        self._data = None
        stream = frame.stream
        if stream is None:
            return
        if frame.content_size:
            self.data_frames += 1
        elif not frame.ends_stream:
            self._budgets.spend(f.DATA)
        if stream.body_expected is not None:
            stream.body_expected -= frame.content_size
        stream.return_window(frame.length)
        if frame.ends_stream:
            try:
                self._remote_end(stream)
            except StreamError as error:
                self._fail_stream(error)

    def _check_window(self, stream: Stream) -> None:
        if stream.receive_window < 0:
            raise Http2ConnectionError(f"stream {stream.id} overran its window", f.FLOW_CONTROL_ERROR)

    def _remote_end(self, stream: Stream) -> None:
        if stream.remote_closed:
            return
        if stream.body_expected:
            raise StreamError(stream.id, "content-length does not match the body", f.PROTOCOL_ERROR)
        stream.remote_closed = True
        stream.handler.on_end()
        self.forget_if_done(stream)

    # --- one method for each other frame type

    def _on_headers(self, flags: int, stream_id: int, payload: memoryview) -> None:
        self._block = HeaderBlock(flags, stream_id, payload, self._header_bytes_max)
        self._block_done()

    def _on_continuation(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if self._block is None:
            raise Http2ConnectionError("CONTINUATION without HEADERS", f.PROTOCOL_ERROR)
        self._block.add(flags, payload)
        self._block_done()

    def _block_done(self) -> None:
        block = self._block
        if block is None or not block.complete:
            return
        self._block = None
        headers = self._decoder.decode(block.content())
        stream_id, end = block.stream_id, block.end
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._more_headers(stream, headers, end)
        elif not self.client and stream_id % 2 == 1 and stream_id > self._last_peer_id:
            self._new_request(stream_id, headers, end)
        elif self._is_idle(stream_id) or stream_id % 2 == 0 or not self._was_open(stream_id):
            raise Http2ConnectionError(f"HEADERS on invalid stream {stream_id}", f.PROTOCOL_ERROR)
        else:
            self._closed_streams.check_late(stream_id, "HEADERS")

    def _new_request(self, stream_id: int, headers: Headers, end: bool) -> None:
        self._last_peer_id = stream_id
        if self.going_away or len(self.streams) >= self._streams_max:
            raise StreamError(stream_id, "too many streams, or going away", f.REFUSED_STREAM)
        fault = request_fault(headers)
        if fault:
            raise StreamError(stream_id, fault, f.PROTOCOL_ERROR)
        assert self._on_request is not None
        stream = Stream(self, stream_id, NO_HANDLER)
        stream.got_headers = True
        stream.body_expected = content_length(stream_id, headers)
        self.streams[stream_id] = stream
        stream.handler = self._on_request(stream, headers)
        stream.handler.on_headers(headers, end)
        if end and not stream.remote_closed:
            self._remote_end(stream)

    def _more_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        if stream.remote_closed:
            raise Http2ConnectionError(f"HEADERS after END_STREAM on {stream.id}", f.STREAM_CLOSED)
        first = not stream.got_headers
        fault = response_fault(headers) if first else trailers_fault(headers)
        if not first and not end:
            fault = "trailers without END_STREAM"
        if fault:
            raise StreamError(stream.id, fault, f.PROTOCOL_ERROR)
        if first and headers[0][1].startswith("1") and not end:
            return  # an interim response; the final one follows
        stream.got_headers = True
        stream.handler.on_headers(headers, end)
        if end and not stream.remote_closed:
            self._remote_end(stream)

    def _on_priority(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if f.UINT32.unpack_from(payload)[0] & 0x7FFFFFFF == stream_id:
            raise StreamError(stream_id, "a stream depends on itself", f.PROTOCOL_ERROR)

    def _on_rst_stream(self, flags: int, stream_id: int, payload: memoryview) -> None:
        stream = self._existing(stream_id, "RST_STREAM")
        if stream is not None:
            code = int(f.UINT32.unpack(payload)[0])
            self.forget(stream, by_us=False)
            name = f.ERROR_NAMES.get(code, str(code))
            stream.handler.on_reset(code, f"the peer reset the stream: {name}")

    def _on_settings(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if flags & f.ACK:
            return
        check_settings_size(len(payload))
        initial_window = self.peer_initial_window
        for key, value in f.parse_settings(payload):
            if key == f.INITIAL_WINDOW_SIZE:
                initial_window = value
            elif key == f.MAX_FRAME_SIZE:
                self.peer_frame_max = min(value, FRAME_BYTES_MAX)
            elif key == f.HEADER_TABLE_SIZE and value < 4096:
                self._block_prefix = NO_DYNAMIC_TABLE
        if initial_window != self.peer_initial_window:
            self._change_initial_window(initial_window)
        self._reply(f.frame(f.SETTINGS, f.ACK, 0))
        self._wake_streams()

    def _change_initial_window(self, value: int) -> None:
        change = value - self.peer_initial_window
        self.peer_initial_window = value
        for stream in self.streams.values():
            stream.window += change
            if stream.window > f.WINDOW_LIMIT:
                raise Http2ConnectionError("SETTINGS overflow a window", f.FLOW_CONTROL_ERROR)

    def _on_push_promise(self, flags: int, stream_id: int, payload: memoryview) -> None:
        raise Http2ConnectionError("PUSH_PROMISE is disabled", f.PROTOCOL_ERROR)

    def _on_ping(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if flags & f.ACK:
            self.on_pong()
        else:
            self._reply(f.frame(f.PING, f.ACK, 0, bytes(payload)), deferred=True)

    def _on_goaway(self, flags: int, stream_id: int, payload: memoryview) -> None:
        last_id, code = f.GOAWAY_HEAD.unpack_from(payload)
        self.peer_going_away = True
        text = bytes(payload[8:208]).decode("latin-1")
        for stream in [s for s in self.streams.values() if self.client and s.id > last_id & 0x7FFFFFFF]:
            self.forget(stream, by_us=False)
            stream.handler.on_reset(f.REFUSED_STREAM, "the peer is going away")
        self.on_goaway(int(code), text)

    def _on_window_update(self, flags: int, stream_id: int, payload: memoryview) -> None:
        increment = int(f.UINT32.unpack(payload)[0]) & 0x7FFFFFFF
        if stream_id == 0:
            if increment == 0 or self.window + increment > f.WINDOW_LIMIT:
                code = f.FLOW_CONTROL_ERROR if increment else f.PROTOCOL_ERROR
                raise Http2ConnectionError(f"WINDOW_UPDATE of {increment}", code)
            blocked = self.window <= 0
            self.window += increment
            self._window_received += increment
            if blocked:
                self._wake_streams()
            return
        stream = self._existing(stream_id, "WINDOW_UPDATE")
        if stream is None:
            return
        if increment == 0 or stream.window + increment > f.WINDOW_LIMIT:
            code = f.FLOW_CONTROL_ERROR if increment else f.PROTOCOL_ERROR
            raise StreamError(stream_id, f"WINDOW_UPDATE of {increment}", code)
        blocked = stream.window <= 0
        stream.window += increment
        if blocked and self.writable and stream.push_tail():
            stream.handler.on_ready()


_FRAME_HANDLERS: Final[dict[int, Callable[[Http2Connection, int, int, memoryview], None]]] = {
    f.HEADERS: Http2Connection._on_headers,
    f.PRIORITY: Http2Connection._on_priority,
    f.RST_STREAM: Http2Connection._on_rst_stream,
    f.SETTINGS: Http2Connection._on_settings,
    f.PUSH_PROMISE: Http2Connection._on_push_promise,
    f.PING: Http2Connection._on_ping,
    f.GOAWAY: Http2Connection._on_goaway,
    f.WINDOW_UPDATE: Http2Connection._on_window_update,
    f.CONTINUATION: Http2Connection._on_continuation,
}
