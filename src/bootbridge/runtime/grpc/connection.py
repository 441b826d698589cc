"""An HTTP/2 connection on asyncio's streams.

The owner awaits `run`, which returns when the connection has ended; every stream was notified before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bootbridge.runtime import tasks
from bootbridge.wire import frames as f
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream, StreamHandler

READ_BYTES: Final = 64 * 1024
KEEPALIVE_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 10.0
# How long a peer may take to read our last bytes.
FINAL_WRITE_SECONDS: Final = 1.0


class GrpcConnection:
    """Drives one HTTP/2 connection. Pings a silent peer while calls are open; no answer closes it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        client: bool,
        on_request: Callable[[Stream, Headers], StreamHandler] | None = None,
        streams_max: int = 1000,
        idle_seconds: float | None = None,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._idle_seconds = idle_seconds
        self._keepalive_seconds = keepalive_seconds
        self._answer_seconds = answer_seconds
        self._loop = asyncio.get_running_loop()
        self._output_pending = asyncio.Event()
        self._over = asyncio.Event()
        self._draining = False
        self.end_reason = ""
        self.http2 = Http2Connection(
            client=client,
            on_request=on_request,
            on_output=self._output_pending.set,
            on_deferred_output=self._output_pending.set,
            streams_max=streams_max,
            now=self._loop.time,
        )

    async def run(self) -> None:
        """Runs until the connection has ended; cancelling it closes the connection."""
        reading = tasks.spawn(self._read(), "calls: reader")
        writing = tasks.spawn(self._write(), "calls: writer")
        try:
            await self._over.wait()
        finally:
            self.end("connection closed locally")
            reading.cancel()
            _, late = await asyncio.wait({reading, writing}, timeout=FINAL_WRITE_SECONDS)
            writing.cancel()
            if late:
                self._writer.transport.abort()  # the peer does not read: close() would wait for it
            self._writer.close()

    def drain(self) -> None:
        """Rejects new calls and closes after the last one."""
        self._draining = True
        self.http2.go_away(f.NO_ERROR, "stopping")
        self._output_pending.set()

    def _end_if_drained(self) -> None:
        if self._draining and not self.http2.streams and not self.http2.out:
            self.end("stopped")

    def end(self, reason: str) -> None:
        """Fails all calls; output that is pending gets a last chance to be written."""
        if not self.end_reason:
            self.end_reason = reason
            self.http2.go_away(f.NO_ERROR, reason)
            self.http2.lost(reason)
            self._output_pending.set()
            self._over.set()

    # --- in

    async def _read(self) -> None:
        """Feeds the connection until the connection ends."""
        busy_at = self._loop.time()
        pinged = False
        while not self.http2.closed:
            if self.http2.streams:
                busy_at = self._loop.time()
            elif self._idle_seconds is not None and self._loop.time() - busy_at >= self._idle_seconds:
                self.end(f"idle timeout: no call for {self._idle_seconds:g}s")
                return
            try:
                async with asyncio.timeout(self._answer_seconds if pinged else self._read_timeout()):
                    data = await self._reader.read(READ_BYTES)
            except TimeoutError:
                if pinged:
                    self.end(
                        f"keepalive timed out: nothing received for {self._answer_seconds:g}s after a PING"
                    )
                elif self.http2.streams:
                    self.http2.ping()
                    pinged = True
                continue
            except OSError as error:
                self.end(f"connection lost: {error.strerror or error}")
                return
            pinged = False
            if not data:
                self.end("connection closed by peer")
                return
            self.http2.receive(data)
            self._end_if_drained()
        self.end(f"protocol error: {self.http2.error}")

    def _read_timeout(self) -> float:
        # Wakes up without calls too, because one may have started.
        if self._idle_seconds is None:
            return self._keepalive_seconds
        return min(self._keepalive_seconds, self._idle_seconds)

    # --- out

    async def _write(self) -> None:
        http2 = self.http2
        while True:
            await self._output_pending.wait()
            self._output_pending.clear()
            try:
                self._writer.writelines(http2.take_output())
                # Streams must not produce more until the socket has accepted this.
                http2.flushed(False)
                await self._writer.drain()
            except OSError as error:
                self.end(f"connection lost: {error.strerror or error}")
                return
            http2.flushed(True)
            self._end_if_drained()
            if http2.closed and not http2.out:
                return
