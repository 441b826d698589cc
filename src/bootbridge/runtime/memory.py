"""Keep the process small: give memory back after a burst instead of holding on to it."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# Above the size of any buffer on the data path: fetching those from the kernel each time, page
# by page, would cost more than all else. What a burst leaves free above this goes back.
_MMAP_BYTES: Final = 2 * 1024 * 1024
_TRIM_BYTES: Final = 1024 * 1024


def use_little_memory() -> None:
    """Set glibc's thresholds, and leave what start-up made out of every later collection."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc
    mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    mallopt(_M_ARENA_MAX, 2)
    gc.collect()
    gc.freeze()
