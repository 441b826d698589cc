"""An HTTP/2 connection on a byte stream: what comes in is fed to it, what it says is written."""

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

# How long at most what is not in a hurry waits for something to leave with.
REST_SECONDS: Final = 0.02


class Turns(Protocol):
    """What a transport needs of the pump: timers, and a flush at the end of a turn or a little later."""

    @property
    def timers(self) -> Timers: ...
    @property
    def dirty(self) -> list[Flushable]: ...
    def flush_later(self, write_out: Callable[[], None]) -> None: ...


class ByteStream(Sink, Protocol):
    """The socket below a http2."""

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
        """``first_stream_seconds``: how long a peer may take for its first stream."""
        self._stream = stream
        self._over = False
        self._rest: Timer | None = None
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
        self._silence: Timer | None = None
        if first_stream_seconds is not None:
            self._silence = stream.pump.timers.after(first_stream_seconds, self._look_for_a_stream)
        stream.start(self)

    def _look_for_a_stream(self) -> None:
        self._silence = None
        if not self.http2.has_had_streams:
            self.http2.go_away(text="no stream was opened")
            self.close("it opened no stream")

    @property
    def has_unsent(self) -> bool:
        """Whether something that was said is not with the kernel yet."""
        return bool(self._gathered or self.http2.out or self._stream.backlog)

    def _on_output(self) -> None:
        self._stream.pump.dirty.append(self)

    def _on_deferred_output(self) -> None:
        if self._rest is None:
            timers = self._stream.pump.timers
            # The next tick of a clock that all connections share: one wake-up is enough for all of them.
            self._rest = timers.after(REST_SECONDS - timers.now() % REST_SECONDS, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self._write_out()

    def flush(self) -> None:
        """End of turn. Little output waits for what the other ready connections have to say."""
        http2 = self.http2
        if http2.out_size >= BOUNDS.http2_gather or http2.closed:
            self._write_out()
            return
        if not self._gathered:
            self._stream.pump.flush_later(self._write_out)
        self._gathered.append(b"".join(http2.take_output()))  # it has to outlive this turn

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
            self.http2.take_output()  # nobody is there to read it
        self._end("the peer closed the connection")

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
        if self._silence is not None:
            self._silence.cancel()
        if self._rest is not None:
            self._rest.cancel()
        self.http2.lost(reason)
        self._write_out()
        self._stream.close()
        self.on_closed(self)
