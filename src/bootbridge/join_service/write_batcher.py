"""Tickets that are wanted at the same time go to the API server together.

kube-apiserver and etcd wake up, commit and answer once for all that comes in one moment: a write among 32
takes them about half the processor time of one that comes alone. Each ticket still has its own writes and
its own answers; only the moment in which they begin is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# More of them save little more.
BATCH_MAX: Final = 32
# Nobody waits for fewer than these: where only a few come, processor time is no matter, and delay is.
BATCH_MIN: Final = 8
WAIT_SECONDS_MAX: Final = 0.1


class WriteBatcher:
    """`join` returns when it leaves. `on_their_way`: how many may still come before it does."""

    def __init__(self, on_their_way: Callable[[], int]) -> None:
        self._on_their_way = on_their_way
        self._waiting: list[asyncio.Future[None]] = []
        self._deadline: asyncio.TimerHandle | None = None

    async def join(self) -> None:
        if not self._waiting and self._on_their_way() < BATCH_MIN:
            return
        loop = asyncio.get_running_loop()
        place = loop.create_future()
        self._waiting.append(place)
        if self._deadline is None:
            self._deadline = loop.call_later(WAIT_SECONDS_MAX, self._leave)
        if len(self._waiting) >= BATCH_MAX or self._on_their_way() < BATCH_MIN:
            self._leave()
        await place

    def _leave(self) -> None:
        assert self._deadline is not None, "somebody waits, and so does the clock"
        self._deadline.cancel()
        self._deadline = None
        leaving, self._waiting = self._waiting, []
        for place in leaving:
            if not place.done():  # its caller may be gone
                place.set_result(None)
