"""Turns: one input to the cores, then everything they want written is written.

The cores run to completion without awaiting; what they write gathers in the streams that
they touched and leaves at the end of the turn, in one system call per stream. Received bytes
lie in buffers shared by all streams, so a turn must end before the next read: whoever feeds
the cores calls ``end_turn``. An HTTP/2 connection, which many connections share, may wait a little longer
(``flush_later``): when many of them speak at once, one write carries what all of them said.

An exception in a turn is a bug of ours. It is reported, what the turn had written until then
leaves before the next read, and all other turns go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from bootbridge.ports.timers import Timers
from bootbridge.runtime.event_loop import Loop

# Half of it costs 4 % more CPU per byte down and 21 % up (docs/performance.md).
READ_BYTES: Final = 256 * 1024
# Decrypted bytes of one read, plus what was left of the record before.
PLAIN_BYTES: Final = READ_BYTES + 32 * 1024


class Flushable(Protocol):
    def flush(self) -> None: ...


class LingeringStream(Protocol):
    """A stream that its owner has closed, while the peer still takes what was written last."""

    @property
    def backlog(self) -> int: ...
    def abort(self) -> None: ...


class Pump:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.sockets = loop.sockets
        self.sockets.on_batch_end = self._end_batch
        self.sockets.on_failure = self._on_failure
        self.timers = Timers(time.monotonic)  # which is what the loop's time is
        self.timers.on_earlier = self._arm
        self.dirty: list[Flushable] = []
        self.lingering: dict[LingeringStream, None] = {}
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.plain_buffer = memoryview(bytearray(PLAIN_BYTES))
        self._soon: list[Callable[[], None]] = []
        self._later: list[Callable[[], None]] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0

    def end_turn(self) -> None:
        dirty = self.dirty
        while dirty:
            try:
                dirty.pop().flush()
            except Exception as error:
                self.loop.report(error)

    def abort_lingering(self) -> None:
        """Time is up: whoever has not taken all must not take the part for the whole. What the kernel
        has, it delivers without us."""
        for stream in list(self.lingering):
            if stream.backlog:
                stream.abort()

    def soon(self, action: Callable[[], None]) -> None:
        """Call it as a turn of its own, behind those of all sockets that are ready now."""
        self._want_batch_end()
        self._soon.append(action)

    def flush_later(self, write_out: Callable[[], None]) -> None:
        """Call it when every socket that is ready now has had its turn."""
        self._want_batch_end()
        self._later.append(write_out)

    def _want_batch_end(self) -> None:
        if not (self.sockets.in_batch or self._soon or self._later):
            self.loop.call_soon(self._end_batch)

    def _end_batch(self) -> None:
        while self._soon or self._later:
            soon, self._soon = self._soon, []
            for action in soon:
                self._take(action)
                self.end_turn()
            later, self._later = self._later, []
            for write_out in later:
                self._take(write_out)
            self.end_turn()

    def _take(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.loop.report(error)

    def _on_failure(self, error: Exception) -> None:
        self.loop.report(error)
        self.end_turn()

    def _arm(self) -> None:
        deadline = self.timers.next_deadline()
        if self._alarm is not None:
            if deadline is not None and self._alarm_at <= deadline:
                return  # it rings earlier than needed and then arms itself anew
            self._alarm.cancel()
            self._alarm = None
        if deadline is not None:
            self._alarm_at = deadline
            self._alarm = self.loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._take(self.timers.fire_due)  # those that a failed one kept from firing are due at once
        self.end_turn()
        self._arm()
