"""The event loop: uvloop where it is there, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def run(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:
        factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


class Signals:
    """SIGINT and SIGTERM, counted: the first asks, the second insists."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._insisted = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self._insisted if self._asked.is_set() else self._asked).set()

    async def asked(self) -> None:
        await self._asked.wait()

    async def insisted_within(self, seconds: float) -> bool:
        """Wait that long at most for the second signal."""
        try:
            async with asyncio.timeout(seconds):
                await self._insisted.wait()
        except TimeoutError:
            return False
        return True
