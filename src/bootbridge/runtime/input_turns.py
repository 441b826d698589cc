"""How long the input of one HTTP/2 connection may keep the thread, while all other connections wait.

A whole read of bulk data takes half a millisecond. As many bytes in the smallest frames or packets that a
peer can send take up to 60 times as long, and no budget forbids them, because they transfer something. So the
input of a connection that has been slow lately is taken in parts, and all other sockets that are ready are
served between two turns of it. Meanwhile the connection is not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from bootbridge.ports.byte_ports import PausableSource
from bootbridge.ports.timers import RunningClock
from bootbridge.runtime.pump import READ_BYTES

# What a whole read may take. Bulk data takes a quarter of it. A connection is slow once it has taken so much
# more than its bytes allow: a message costs most in the read that completes it. This and TURN_SECONDS are
# processor time, so that another program that takes the processor does not make a connection slow.
READ_SECONDS_MAX: Final = 0.002
# So is a new one, which has shown nothing yet, and one that was slow so short a time ago.
NEW_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 10.0
# Of the input of a slow connection: after a part the clock is read, after so long others are served. The
# parts of a turn grow while they are fast: a caller over gRPC opens a connection for each dial, and may
# upload at once.
PART_BYTES: Final = 1024
PART_BYTES_MAX: Final = 16 * 1024
TURN_SECONDS: Final = 0.0001
# Smaller reads are taken at once, and say little about the speed.
MEASURED_BYTES_MIN: Final = 8 * 1024


class Turns(Protocol):
    """What is needed of the pump."""

    @property
    def clock(self) -> RunningClock: ...
    def cpu_time(self) -> float: ...
    def next_turn(self, action: Callable[[], None]) -> None: ...


class InputTurns:
    """Gives ``receive`` what is read from ``source``: at once, or in the turns of a slow connection.

    ``failed`` is called if ``receive`` raises, which is a defect of ours.
    """

    __slots__ = (
        "_at_end",
        "_cpu_time",
        "_excess",
        "_failed",
        "_now",
        "_pump",
        "_receive",
        "_rest",
        "_slow_until",
        "_source",
    )

    def __init__(
        self,
        pump: Turns,
        source: PausableSource,
        receive: Callable[[memoryview], None],
        failed: Callable[[], None],
    ) -> None:
        self._pump = pump
        self._source = source
        self._receive = receive
        self._failed = failed
        self._now = pump.clock.real_time
        self._cpu_time = pump.cpu_time
        self._slow_until = self._now() + NEW_SECONDS
        self._excess = 0.0
        self._rest = memoryview(b"")
        self._at_end: Callable[[], None] | None = None

    def take(self, data: memoryview) -> None:
        size = len(data)
        if size < MEASURED_BYTES_MIN:
            self._receive(data)
            return
        if self._now() < self._slow_until:
            self._rest = data
            self._take_turn()
            if self._rest:
                self._rest = memoryview(bytes(self._rest))  # the buffer is valid only during this turn
                self._source.pause_reading()
                self._pump.next_turn(self._take_next_turn)
        else:
            began = self._cpu_time()
            self._receive(data)
            self._judge(self._cpu_time() - began, size)

    def at_end(self, action: Callable[[], None]) -> None:
        """Calls it when everything has been received."""
        if self._rest:
            self._at_end = action
        else:
            action()

    def drop(self) -> None:
        """The connection is over. A closing socket is read until its peer has closed it, too."""
        self._at_end = None
        if self._rest:
            self._rest = memoryview(b"")
            self._source.resume_reading()

    def _take_next_turn(self) -> None:
        if not self._rest:
            return  # dropped
        self._take_turn()
        if self._rest:
            self._pump.next_turn(self._take_next_turn)
            return
        self._source.resume_reading()
        if self._at_end is not None:
            action, self._at_end = self._at_end, None
            action()

    def _take_turn(self) -> None:
        """Takes parts until time is up; fast ones may take twice as long as a whole read of bulk data."""
        began = ended = self._cpu_time()
        size, taken, is_fast = PART_BYTES, 0, True
        while self._rest and ended - began < (READ_SECONDS_MAX / 2 if is_fast else TURN_SECONDS):
            part, self._rest = self._rest[:size], self._rest[size:]
            try:
                self._receive(part)
            except Exception:
                self.drop()
                self._failed()
                raise
            taken += len(part)
            part_began, ended = ended, self._cpu_time()
            is_fast = (ended - part_began) * 2 < TURN_SECONDS
            size = min(2 * size, PART_BYTES_MAX) if is_fast else PART_BYTES
        self._judge(ended - began, taken)

    def _judge(self, seconds: float, size: int) -> None:
        self._excess = max(0.0, self._excess + seconds - READ_SECONDS_MAX * size / READ_BYTES)
        if self._excess > READ_SECONDS_MAX:
            self._excess = 0.0
            self._slow_until = self._now() + SLOW_SECONDS
