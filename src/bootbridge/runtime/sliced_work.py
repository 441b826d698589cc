"""Long work of an admin request, divided into slices between which the event loop serves connections.

The status of 1,000 agents and 10,000 connections takes up to 80 ms of CPU time on the thread that also
transfers all bytes. In slices, a connection waits for one of them, and for no more than the longest step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from bootbridge.runtime.process_tuning import without_collection

Result = TypeVar("Result")
Item = TypeVar("Item")
# Work that yields wherever it may pause, and returns its result.
Steps = Generator[None, None, Result]

SLICE_SECONDS: Final = 0.0005
# The share of the thread's time that the work gets while it lasts. Small work is done in one slice.
SHARE: Final = 0.2
# Of objects that take a microsecond each.
CHUNK_ITEMS: Final = 250


class SlicedWork:
    """Runs work in slices, one at a time: the share is that of all requests together."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, steps: Steps[Result]) -> tuple[Result, float]:
        """Returns the result, and the CPU seconds that it took."""
        spent = 0.0
        async with self._turn:
            while True:
                ended, seconds = _slice(steps)
                spent += seconds
                if ended is not None:
                    return ended.value, spent
                await asyncio.sleep(seconds * (1 / SHARE - 1))


def run_at_once(steps: Steps[Result]) -> Result:
    """Returns the result without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: Result = ended.value
            return result


def chunks(items: Iterable[Item]) -> Iterator[Sequence[Item]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK_ITEMS)):
        yield chunk


def _slice(steps: Steps[Result]) -> tuple[StopIteration | None, float]:
    """Runs one slice; returns the end of the work, if it was reached, and the CPU seconds."""
    start = now = time.thread_time()
    with without_collection():
        while now - start < SLICE_SECONDS:
            try:
                next(steps)
            except StopIteration as ended:
                return ended, time.thread_time() - start
            now = time.thread_time()
    return None, now - start
