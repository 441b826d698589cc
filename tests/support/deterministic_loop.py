"""An event loop with virtual time and no I/O that runs ready callbacks in an order decided by a seed.

asyncio runs callbacks in the order in which they became ready, which depends on sockets and threads. Here the
order is reproducible, and tests cover far more orders.
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
    """No callback is ready and no timer is pending, but a task still waits."""


class LivelockError(Exception):
    """The run exceeded ``STEPS_MAX`` steps."""


class TasksLeftError(Exception):
    """Tasks were still running when the main coroutine returned."""


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
        # A random one; the last one takes its place, which keeps the choice random and O(1).
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
        """Does nothing: the loop has no selector."""

    def _write_to_self(self) -> None:
        """Does nothing: no other thread has to wake the loop."""

    def abandon(self) -> None:
        """Cancels the remaining tasks and discards their results, as the end of a process would."""
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
    """Returns the result of `work`. A task that it leaves running is an error, unless ``may_leave``."""
    loop = DeterministicLoop(seed)
    if may_leave:
        # The tasks of a killed process have no result that matters.
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
