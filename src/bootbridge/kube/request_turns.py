"""Assigns the permits of a rate limit to sources in turn.

Any peer may cause the requests of a source. So one that causes many waits for its own, and each other source
waits for one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bootbridge.kube.errors import KubeThrottled
from bootbridge.kube.fair_queue import FairQueue

# Requests that wait for a turn, if the rate limit permits any number.
_WAITING_MAX: Final = 10_000


class RequestTurns:
    """Gives each request its permit when one is free; more than can be sent in time do not wait."""

    def __init__(
        self, take_permit: Callable[[], float], qps: float, seconds_max: float, hint: str = ""
    ) -> None:
        """``take_permit`` takes a permit and returns 0, or the seconds until one is free."""
        self._take_permit = take_permit
        self._qps = qps
        self._seconds_max = seconds_max
        self._hint = f"; {hint}" if hint else ""
        waiting_max = int(qps * seconds_max) if qps > 0 else _WAITING_MAX
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(waiting_max)
        self._timer: asyncio.TimerHandle | None = None

    async def next(self, source: str) -> None:
        """Returns with a permit; raises KubeThrottled if there is none in time, or too many wait."""
        if not len(self._queue) and not self._take_permit():
            return
        turn = asyncio.get_running_loop().create_future()
        evicted = self._queue.add(source, turn)
        if evicted is not None and not evicted.done():
            evicted.set_exception(KubeThrottled(self._throttled_text))
        self._assign()
        try:
            async with asyncio.timeout(self._seconds_max):
                await turn
        except TimeoutError:
            raise KubeThrottled(self._throttled_text) from None
        finally:
            self._queue.remove(source, turn)

    @property
    def _throttled_text(self) -> str:
        return (
            f"rate limit exceeded: at {self._qps:g} requests per second this one would wait "
            f"more than {self._seconds_max:g}s{self._hint}"
        )

    def _assign(self) -> None:
        if self._timer is not None:
            return
        while len(self._queue):
            wait = self._take_permit()
            if wait:
                self._timer = asyncio.get_running_loop().call_later(wait, self._on_timer)
                return
            turn = self._queue.take()
            if turn is not None and not turn.done():
                turn.set_result(None)

    def _on_timer(self) -> None:
        self._timer = None
        self._assign()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
