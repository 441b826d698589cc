"""An event loop that a seed decides: virtual time, no I/O, and whatever is ready runs in random order.

asyncio runs what is ready in the order it became so. That order is chance in a real process, too, since it
depends on sockets and threads; here chance is replayable, and far more orders are met.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

STEPS_MAX = 200_000


class DeadlockError(Exception):
    """Nothing is ready and nothing is due: whoever waits now waits for ever."""


class LivelockError(Exception):
    """Far more happened than in any run that ends: somebody goes round in circles."""


class TasksLeftError(Exception):
    """Work that nobody waited for outlived the one that started it."""


class DeterministicLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now = 0.0
        self.chance = Random(seed)
        self.steps = 0
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        self.steps += 1
        if self.steps == STEPS_MAX:
            raise LivelockError
        if not ready:
            self._next_moment()
        # Any of those that are ready; the last one takes its place, which is random as well.
        at = self.chance.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        handle = ready.pop()
        if not handle.cancelled():
            handle._run()

    def _next_moment(self) -> None:
        due = self._scheduled  # type: ignore[attr-defined]
        while due and not self._ready:  # type: ignore[attr-defined]
            handle = heapq.heappop(due)
            handle._scheduled = False
            if handle.cancelled():
                continue
            self.now = max(self.now, handle.when())
            self._ready.append(handle)  # type: ignore[attr-defined]
            while due and due[0].when() <= self.now:
                again = heapq.heappop(due)
                again._scheduled = False
                self._ready.append(again)  # type: ignore[attr-defined]
        if not self._ready:  # type: ignore[attr-defined]
            raise DeadlockError

    def _process_events(self, event_list: object) -> None:
        """There is no selector."""

    def _write_to_self(self) -> None:
        """There is nobody in another thread to wake."""

    def abandon(self) -> None:
        """End what is left, as the end of a process would, and forget how it ended."""
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        if left:
            self.run_until_complete(_all_ended(left))


async def _all_ended(left: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(left)
    for task in left:
        if not task.cancelled():
            task.exception()
    await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, T], seed: int = 0, *, may_leave: bool = False) -> T:
    """What `work` gives; a task that it leaves behind is an error, unless a crash is the point of it."""
    loop = DeterministicLoop(seed)
    if may_leave:
        # How the tasks of a process end that was killed is of no interest to anybody.
        loop.set_exception_handler(lambda loop, context: None)
    try:
        result = loop.run_until_complete(work)
        left = sorted(task.get_name() for task in asyncio.all_tasks(loop))
        if left and not may_leave:
            raise TasksLeftError(", ".join(left))
        return result
    finally:
        loop.abandon()
        loop.close()
