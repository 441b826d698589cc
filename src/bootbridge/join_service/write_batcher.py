"""Starts the writes of concurrent tickets together.

kube-apiserver and etcd wake up, commit and answer once for all writes that arrive together: a write among 32
costs about half the processor time of a single one. Each ticket keeps its own writes and responses; only
their start is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# Larger batches save little more.
BATCH_MAX: Final = 32
# With fewer requests to come, processor time does not matter, and delay does.
BATCH_MIN: Final = 8
WAIT_SECONDS_MAX: Final = 0.1


class WriteBatcher:
    """`pending` returns how many further requests may arrive soon."""

    def __init__(self, pending: Callable[[], int]) -> None:
        self._pending = pending
        self._waiting: list[asyncio.Future[None]] = []
        self._deadline: asyncio.TimerHandle | None = None

    async def wait_for_batch(self) -> None:
        """Returns when the batch starts: it is full, few requests are pending, or WAIT_SECONDS_MAX passed."""
        if not self._waiting and self._pending() < BATCH_MIN:
            return
        loop = asyncio.get_running_loop()
        started = loop.create_future()
        self._waiting.append(started)
        if self._deadline is None:
            self._deadline = loop.call_later(WAIT_SECONDS_MAX, self._start_batch)
        if len(self._waiting) >= BATCH_MAX or self._pending() < BATCH_MIN:
            self._start_batch()
        await started

    def _start_batch(self) -> None:
        assert self._deadline is not None, "the timer runs while a request waits"
        self._deadline.cancel()
        self._deadline = None
        batch, self._waiting = self._waiting, []
        for started in batch:
            if not started.done():  # cancelled: its caller disconnected
                started.set_result(None)
