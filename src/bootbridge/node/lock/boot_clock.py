"""The seconds of this boot: they outlive a process and its crash, and nobody sets them."""

from __future__ import annotations

import time


def seconds_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
