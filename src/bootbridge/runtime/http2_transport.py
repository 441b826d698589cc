"""An HTTP/2 connection on a byte stream: feeds it what is read, writes what it produces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from bootbridge.bounds import BOUNDS
from bootbridge.ports.byte_ports import ByteHandler, Sink
from bootbridge.ports.timers import Timer, Timers
from bootbridge.runtime.keepalive import Keepalive
from bootbridge.runtime.pump import Flushable
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream, StreamHandler

# How long deferred output (WINDOW_UPDATE, credit) may wait for other output to share a write with.
DEFER_SECONDS: Final = 0.02


class Turns(Protocol):
    """What a transport needs of the pump: timers, and a flush at the end of a turn or a little later."""

    @property
    def timers(self) -> Timers: ...
    @property
    def dirty(self) -> list[Flushable]: ...
    def flush_later(self, write_out: Callable[[], None]) -> None: ...


class ByteStream(Sink, Protocol):
    """The socket below the HTTP/2 connection."""

    @property
    def pump(self) -> Turns: ...
    def start(self, handler: ByteHandler) -> None: ...
    def close(self) -> None: ...


class Http2Transport:
    def __init__(
        self,
        stream: ByteStream,
        *,
        client: bool = False,
        on_request: Callable[[Stream, Headers], StreamHandler] | None = None,
        keepalive_seconds: float,
        streams_max: int = 1000,
        first_stream_seconds: float | None = None,
    ) -> None:
        """Closes a peer that opens no stream within ``first_stream_seconds``."""
        self._stream = stream
        self._over = False
        self._defer_timer: Timer | None = None
        self._gathered: list[bytes] = []
        self.on_closed: Callable[[Http2Transport], None] = lambda transport: None
        self.http2 = Http2Connection(
            client=client,
            on_request=on_request,
            on_output=self._on_output,
            on_deferred_output=self._on_deferred_output,
            streams_max=streams_max,
        )
        self._keepalive = Keepalive(self.http2, stream.pump.timers, keepalive_seconds, self.close)
        self._first_stream_timer: Timer | None = None
        if first_stream_seconds is not None:
            timers = stream.pump.timers
            self._first_stream_timer = timers.after(first_stream_seconds, self._check_first_stream)
        stream.start(self)

    def _check_first_stream(self) -> None:
        self._first_stream_timer = None
        if not self.http2.has_had_streams:
            self.http2.go_away(text="no stream opened")
            self.close("no stream opened in time")

    @property
    def has_unsent(self) -> bool:
        """Whether the kernel has not accepted all output yet."""
        return bool(self._gathered or self.http2.out or self._stream.backlog)

    def _on_output(self) -> None:
        self._stream.pump.dirty.append(self)

    def _on_deferred_output(self) -> None:
        if self._defer_timer is None:
            timers = self._stream.pump.timers
            # Aligned to a common tick, so that one wake-up serves all connections.
            self._defer_timer = timers.after(DEFER_SECONDS - timers.now() % DEFER_SECONDS, self._deferred)

    def _deferred(self) -> None:
        self._defer_timer = None
        self._write_out()

    def flush(self) -> None:
        """End of turn. Small output waits for that of the other ready connections, to share a write."""
        http2 = self.http2
        if http2.out_size >= BOUNDS.http2_gather or http2.closed:
            self._write_out()
            return
        if not self._gathered:
            self._stream.pump.flush_later(self._write_out)
        self._gathered.append(b"".join(http2.take_output()))  # the parts are valid only during this turn

    def _write_out(self) -> None:
        stream = self._stream
        if self._gathered:
            stream.write(b"".join(self._gathered))
            self._gathered = []
        for part in self.http2.take_output():
            stream.write(part)
        if self.http2.closed:
            self._end(str(self.http2.error or "closed"))

    # --- from the byte stream

    def on_bytes(self, data: memoryview) -> None:
        self.http2.receive(data)

    def on_drained(self) -> None:
        self.http2.flushed(self._stream.backlog < BOUNDS.http2_backlog)

    def on_eof(self, gone: bool) -> None:
        if gone:
            self.http2.take_output()  # the peer no longer reads
        self._end("connection closed by peer")

    def on_lost(self, reason: str) -> None:
        self._end(reason)

    # --- ending

    def close(self, reason: str = "closed") -> None:
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        self._keepalive.close()
        if self._first_stream_timer is not None:
            self._first_stream_timer.cancel()
        if self._defer_timer is not None:
            self._defer_timer.cancel()
        self.http2.lost(reason)
        self._write_out()
        self._stream.close()
        self.on_closed(self)
