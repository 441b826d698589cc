"""Deadlines, kept in one heap. The only notion of time that the cores have."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Timer:
    __slots__ = ("_action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self._action: Callable[[], None] | None = action

    @property
    def cancelled(self) -> bool:
        return self._action is None

    def cancel(self) -> None:
        self._action = None

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

    def __len__(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self._heap)

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        timer = Timer(self.now() + seconds, action)
        entry = (timer.when, next(self._order), timer)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self.on_earlier()
        return timer

    def next_deadline(self) -> float | None:
        heap = self._heap
        while heap and heap[0][2].cancelled:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def fire_due(self) -> None:
        now = self.now()
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            heapq.heappop(self._heap)[2].fire()
