"""Process-wide settings of a proxy process: garbage collector, glibc heap, open-file limit."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# Larger than any buffer on the data path: mapping those for each use would cost more than all else.
# Free memory above the trim threshold returns to the kernel.
_MMAP_BYTES: Final = 2 * 1024 * 1024
_TRIM_BYTES: Final = 1024 * 1024
_QUIET_SECONDS: Final = 1.0


def raise_open_file_limit() -> None:
    """Raises the soft limit of open files to the hard limit, as Go programs do; shells start with 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass  # the process then runs with the limit that it has


def reduce_memory_use() -> None:
    """Sets glibc's thresholds, and exempts the objects of start-up from garbage collection."""
    gc.collect()
    gc.freeze()
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        libc.mallopt(_M_ARENA_MAX, 2)
    except (OSError, AttributeError):
        return  # not glibc


@contextmanager
def without_collection() -> Iterator[None]:
    """Pauses the garbage collector, for code that creates many objects without cycles.

    With 10,000 connections a full collection takes 40 ms, and a page of their status would cause one.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class HeapTrimmer:
    """Returns free heap memory to the kernel once after each burst of traffic."""

    def __init__(self, loop: asyncio.AbstractEventLoop, traffic: Callable[[], float]) -> None:
        self._loop = loop
        self._traffic = traffic
        self._seen = self._trimmed = traffic()
        self._timer = loop.call_later(_QUIET_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = self._loop.call_later(_QUIET_SECONDS, self._check)
        now = self._traffic()
        if now == self._seen and now != self._trimmed:
            self._trimmed = now
            _trim()
        self._seen = now

    def close(self) -> None:
        self._timer.cancel()


def _trim() -> None:
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return  # not glibc
