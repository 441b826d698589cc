"""Time that passes when a test says so: sockets are real, and nobody waits for a deadline, or races it."""

from __future__ import annotations

import asyncio


def pass_time(seconds: float) -> None:
    """For the running loop, at once: what is due by then is due now."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]
