"""asyncio's event loop with ``Sockets`` as its selector, which serves our sockets without callbacks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVarTuple

from bootbridge.runtime.sockets import Sockets

_Args = TypeVarTuple("_Args")


class Loop(asyncio.SelectorEventLoop):
    """Serves the sockets until asyncio has a callback to run."""

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
        """Reports an unexpected exception in one connection's turn."""
        self.call_exception_handler({"message": "unexpected exception in a connection", "exception": error})


def run(main: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)


def running_loop() -> Loop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop), "sockets are only watched by event_loop.Loop"
    return loop


class StopSignals:
    """SIGINT and SIGTERM: the first requests a graceful stop, the second forces it."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._forced = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self._forced if self._requested.is_set() else self._requested).set()

    def restore_default_handlers(self) -> None:
        """From now on a signal ends the process at once: the remaining shutdown is short."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    async def stop_requested(self) -> None:
        await self._requested.wait()

    async def forced_within(self, seconds: float) -> bool:
        """Waits for the second signal; returns False after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._forced.wait()
        except TimeoutError:
            return False
        return True
