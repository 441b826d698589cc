"""Runs turns: one input to the cores, then all their output is written.

The cores run to completion without awaiting. Their output collects in the streams that they touched and
leaves at the end of the turn, with one system call per stream. Received bytes are in buffers that all
streams share, so a turn must end before the next read: the code that feeds the cores calls ``end_turn``.
An HTTP/2 connection, which many tunnelled connections share, may wait a little longer (``flush_later``):
one write then contains the output of all of them.

An exception in a turn is a bug. It is reported, the output of that turn is written, and all other turns
continue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from bootbridge.ports.timers import CATCH_UP_SECONDS, RunningClock, Timers
from bootbridge.runtime.event_loop import Loop

# Half of it costs 4 % more CPU per byte down and 21 % up (docs/performance.md).
READ_BYTES: Final = 256 * 1024
# Decrypted bytes of one read, plus what was left of the record before.
PLAIN_BYTES: Final = READ_BYTES + 32 * 1024


class Flushable(Protocol):
    def flush(self) -> None: ...


class LingeringStream(Protocol):
    """A stream that its owner has closed while data is still being sent to the peer."""

    @property
    def backlog(self) -> int: ...
    def abort(self) -> None: ...


class Pump:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.sockets = loop.sockets
        self.sockets.on_batch_end = self._end_batch
        self.sockets.on_failure = self._on_failure
        self.clock = RunningClock(time.monotonic)  # the clock of the event loop
        self.timers = Timers(self.clock.now)
        self.timers.on_earlier = self._arm
        self.cpu_time = time.thread_time
        self.dirty: list[Flushable] = []
        self.lingering: dict[LingeringStream, None] = {}
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.plain_buffer = memoryview(bytearray(PLAIN_BYTES))
        self._soon: list[Callable[[], None]] = []
        self._later: list[Callable[[], None]] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._deferred = False

    def end_turn(self) -> None:
        dirty = self.dirty
        while dirty:
            try:
                dirty.pop().flush()
            except Exception as error:
                self.loop.report(error)

    def abort_lingering(self) -> None:
        """Resets streams that still have unsent data, so that the peer sees a truncation."""
        for stream in list(self.lingering):
            if stream.backlog:
                stream.abort()

    def soon(self, action: Callable[[], None]) -> None:
        """Calls it as a separate turn, after the turns of all sockets that are ready now."""
        self._want_batch_end()
        self._soon.append(action)

    def next_turn(self, action: Callable[[], None]) -> None:
        """Calls it as a separate turn, after one turn of each socket that is ready by then."""
        self.loop.call_soon(self._turn, action)

    def _turn(self, action: Callable[[], None]) -> None:
        self._call(action)
        self.end_turn()

    def flush_later(self, write_out: Callable[[], None]) -> None:
        """Calls it after the turns of all sockets that are ready now."""
        self._want_batch_end()
        self._later.append(write_out)

    def _want_batch_end(self) -> None:
        if not (self.sockets.in_batch or self._soon or self._later):
            self.loop.call_soon(self._end_batch)

    def _end_batch(self) -> None:
        while self._soon or self._later:
            soon, self._soon = self._soon, []
            for action in soon:
                self._call(action)
                self.end_turn()
            later, self._later = self._later, []
            for write_out in later:
                self._call(write_out)
            self.end_turn()

    def _call(self, action: Callable[[], None]) -> None:
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
            if deadline is not None and self.clock.alarm_at <= self.clock.in_real_time(deadline):
                return  # it fires earlier than needed and then arms itself again
            self._alarm.cancel()
            self._alarm = None
        when = self.clock.set_alarm(deadline)
        if deadline is not None:
            self._alarm = self.loop.call_at(when, self._on_alarm)

    def _on_alarm(self) -> None:
        # After a pause the sockets are read before timers fire; but every second alarm fires them.
        self._deferred = self.clock.take_resumed() and not self._deferred
        if self._deferred:
            self._alarm = self.loop.call_later(CATCH_UP_SECONDS, self._on_alarm)
            return
        self._alarm = None
        self._call(self.timers.fire_due)  # timers behind a failed one fire at the next alarm
        self.end_turn()
        self._arm()
