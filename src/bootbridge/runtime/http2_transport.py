"""An HTTP/2 connection on a byte stream: feeds it what is read, writes what it produces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from bootbridge.bounds import BOUNDS
from bootbridge.ports.byte_ports import ByteHandler, PausableSource, Sink
from bootbridge.ports.timers import Timer, Timers
from bootbridge.runtime.input_turns import InputTurns, Turns
from bootbridge.runtime.keepalive import Keepalive
from bootbridge.runtime.pump import Flushable
from bootbridge.wire.hpack_headers import HEADER_LIST_BYTES_MAX, Headers
from bootbridge.wire.http2_budgets import FrameBudget
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream, StreamHandler

# How long deferred output (WINDOW_UPDATE, credit) may wait for other output to share a write with.
DEFER_SECONDS: Final = 0.02
UNADMITTED_TEXT: Final = "no stream admitted in time"


class TransportPump(Turns, Protocol):
    """What a transport needs of the pump: turns, timers, and a flush at their end or a little later."""

    @property
    def timers(self) -> Timers: ...
    @property
    def dirty(self) -> list[Flushable]: ...
    def flush_later(self, write_out: Callable[[], None]) -> None: ...


class ByteStream(Sink, PausableSource, Protocol):
    """The socket below the HTTP/2 connection."""

    @property
    def pump(self) -> TransportPump: ...
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
        header_bytes_max: int = HEADER_LIST_BYTES_MAX,
        budgets: Sequence[FrameBudget] = (),
        unadmitted_seconds: float | None = None,
        accepted_at: float | None = None,
    ) -> None:
        """Closes a connection that has no admitted stream for ``unadmitted_seconds``, first counted from
        ``accepted_at``."""
        self._stream = stream
        self._over = False
        self._defer_timer: Timer | None = None
        self._gathered: list[bytes] = []
        self.peer = ""
        self.on_closed: Callable[[Http2Transport], None] = lambda transport: None
        self.http2 = Http2Connection(
            client=client,
            on_request=on_request,
            on_output=self._on_output,
            on_deferred_output=self._on_deferred_output,
            streams_max=streams_max,
            header_bytes_max=header_bytes_max,
            budgets=budgets,
            now=stream.pump.clock.real_time,  # peers go on sending while we are paused
            admits=unadmitted_seconds is not None,
        )
        self._input = InputTurns(stream.pump, stream, self.http2.receive, self._on_failure)
        self._keepalive = Keepalive(self.http2, stream.pump.timers, keepalive_seconds, self.close)
        self.on_admitted_change: Callable[[Http2Transport], None] = lambda transport: None
        self._unadmitted_seconds = unadmitted_seconds
        self._unadmitted_timer: Timer | None = None
        if unadmitted_seconds is not None:
            self.http2.on_admitted_change = self._on_admitted_change
            timers = stream.pump.timers
            elapsed = timers.now() - accepted_at if accepted_at is not None else 0.0
            self._unadmitted_timer = timers.after(unadmitted_seconds - elapsed, self._on_unadmitted)
        stream.start(self)

    def _on_admitted_change(self) -> None:
        """Starts the deadline while no stream is admitted, and stops it when one is."""
        if self._unadmitted_timer is not None:
            self._unadmitted_timer.cancel()
            self._unadmitted_timer = None
        if self._over:
            return
        if not self.http2.admitted and self._unadmitted_seconds is not None:
            timers = self._stream.pump.timers
            self._unadmitted_timer = timers.after(self._unadmitted_seconds, self._on_unadmitted)
        self.on_admitted_change(self)

    def _on_unadmitted(self) -> None:
        self._unadmitted_timer = None
        self.http2.go_away(text=UNADMITTED_TEXT)
        self.close(UNADMITTED_TEXT)

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
        self._input.take(data)

    def on_drained(self) -> None:
        self.http2.flushed(self._stream.backlog < BOUNDS.http2_backlog)

    def on_eof(self, gone: bool) -> None:
        self._input.at_end(partial(self._on_eof, gone))

    def _on_eof(self, gone: bool) -> None:
        if gone:
            self.http2.take_output()  # the peer no longer reads
        self._end("connection closed by peer")

    def on_lost(self, reason: str) -> None:
        self._input.at_end(partial(self._end, reason))

    def _on_failure(self) -> None:
        self._end("internal error")

    # --- ending

    def close(self, reason: str = "closed") -> None:
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        self._keepalive.close()
        if self._unadmitted_timer is not None:
            self._unadmitted_timer.cancel()
            self._unadmitted_timer = None
        if self._defer_timer is not None:
            self._defer_timer.cancel()
        self._input.drop()
        self.http2.lost(reason)
        self._write_out()
        self._stream.close()
        self.on_closed(self)
