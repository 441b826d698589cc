"""Timers in one heap. The cores know time only through them.

Nearly every timer is cancelled long before it is due (a dial is answered, a connection closed).
Cancelled timers stay in the heap until they are more than half of it; then the heap is rebuilt. So
cancelling is cheap, and memory is proportional to the active timers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Final

_REBUILD_ABOVE: Final = 64
# An alarm that is this late was not delayed by work: the process did not run.
PAUSE_SECONDS_MIN: Final = 2.0
# The longest time between two alarms. If only deadlines were alarms, a pause that ends right after one would
# look like work, and the deadline would pass although the peer's answer is waiting in a socket.
ALARM_SECONDS_MAX: Final = 1.0
# After a pause, timers wait this long for what peers have sent meanwhile: it may take several reads.
CATCH_UP_SECONDS: Final = 0.5


class RunningClock:
    """The time that this process has run. What a peer must do in time, it must do while we run: our own pause
    (SIGSTOP, a frozen cgroup, a live migration) is not its stall.

    A pause shows in an alarm that comes too late, so the owner sets one with ``set_alarm``. After a pause it
    reads its sockets for ``CATCH_UP_SECONDS`` before it fires timers: what peers have sent is waiting there.
    """

    __slots__ = ("_absent", "_deadline", "_resumed", "alarm_at", "real_time")

    def __init__(self, real_time: Callable[[], float]) -> None:
        self.real_time = real_time
        self.alarm_at = inf  # in real time
        self._deadline = inf  # the same moment, in ours
        self._absent = 0.0
        self._resumed = False

    def now(self) -> float:
        real = self.real_time()
        if real < self.alarm_at:
            return real - self._absent
        if real - self.alarm_at > PAUSE_SECONDS_MIN:
            self._absent += real - self.alarm_at
            self.alarm_at = real
            self._resumed = True
        return max(real - self._absent, self._deadline)  # not a rounding error before it

    def in_real_time(self, deadline: float | None) -> float:
        return inf if deadline is None else deadline + self._absent

    def set_alarm(self, deadline: float | None) -> float:
        """The process wants to run again then. Returns the real time of the alarm, which may be earlier."""
        if deadline is None:
            self._deadline = inf
        else:
            self._deadline = min(deadline, self.real_time() - self._absent + ALARM_SECONDS_MAX)
        self.alarm_at = self._deadline + self._absent
        return self.alarm_at

    def take_resumed(self) -> bool:
        """Whether the process was paused since the last call."""
        self.now()
        resumed, self._resumed = self._resumed, False
        return resumed


class Timer:
    __slots__ = ("_action", "_timers", "when")

    def __init__(self, timers: Timers, when: float, action: Callable[[], None]) -> None:
        self._timers = timers
        self._action: Callable[[], None] | None = action
        self.when = when

    @property
    def cancelled(self) -> bool:
        return self._action is None

    def cancel(self) -> None:
        if self._action is not None:
            self._action = None
            self._timers.on_cancelled()

    def fire(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


class Timers:
    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.on_earlier: Callable[[], None] = lambda: None
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._cancelled = 0

    def __len__(self) -> int:
        """Returns the number of active timers."""
        return len(self._heap) - self._cancelled

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        timer = Timer(self, self.now() + seconds, action)
        heapq.heappush(self._heap, (timer.when, next(self._order), timer))
        if self._heap[0][2] is timer:
            self.on_earlier()
        return timer

    def on_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > _REBUILD_ABOVE and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].cancelled]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next_deadline(self) -> float | None:
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def fire_due(self) -> None:
        now = self.now()
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            heapq.heappop(self._heap)[2].fire()
