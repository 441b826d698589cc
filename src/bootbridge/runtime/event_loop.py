"""The event loop: asyncio's, which finds our sockets ready in ``Sockets``, past its own callbacks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVarTuple

from bootbridge.runtime.sockets import Sockets

_Args = TypeVarTuple("_Args")


class Loop(asyncio.SelectorEventLoop):
    """Stays with the sockets until it is given something else to do."""

    def __init__(self) -> None:
        self.sockets = Sockets()
        self.sockets.on_failure = self.report
        super().__init__(self.sockets)

    def call_soon(
        self,
        callback: Callable[[*_Args], object],
        *args: *_Args,
        context: Context | None = None,
    ) -> asyncio.Handle:
        self.sockets.interrupted = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Args], object],
        *args: *_Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.sockets.interrupted = True
        return super().call_at(when, callback, *args, context=context)

    def report(self, error: Exception) -> None:
        """A bug of ours, in one connection's turn."""
        self.call_exception_handler({"message": "a connection's turn failed", "exception": error})


def run(main: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)


def running_loop() -> Loop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop), "sockets are watched by event_loop.Loop only"
    return loop


class StopSignals:
    """SIGINT and SIGTERM, counted: the first asks, the second insists."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._insisted = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self._insisted if self._asked.is_set() else self._asked).set()

    def restore_default_handlers(self) -> None:
        """What is left to do is short: the next signal ends the process, as if nobody caught it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    async def stop_requested(self) -> None:
        await self._asked.wait()

    async def forced_within(self, seconds: float) -> bool:
        """Wait that long at most for the second signal."""
        try:
            async with asyncio.timeout(seconds):
                await self._insisted.wait()
        except TimeoutError:
            return False
        return True
