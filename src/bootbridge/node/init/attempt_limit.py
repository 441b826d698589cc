"""Limits the rate of guesses of the init secret, per source address and in total.

A source makes one attempt at a time and pauses after each wrong one. Sources alternate: a source that guesses
continuously delays a client from another address by one attempt, not by its whole queue. All sources together
are limited to a few guesses a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

PAUSE_SECONDS: Final = 1.0
# Bounded: a client that knows the secret may share an address with one that guesses.
PAUSE_SECONDS_MAX: Final = 8.0
# After a wrong attempt no attempt is checked for this long: at most four guesses a second in total. A client
# that knows the secret waits at most this long per other waiting source.
GAP_SECONDS: Final = 0.25
# Waiting attempts of one source; further ones are rejected at once.
WAITING_MAX: Final = 8
# Remembered sources. A new one replaces the least recently used one and its pause; GAP_SECONDS still applies.
# If all of them have waiting attempts, the new one is rejected; there are fewer channels than that.
SOURCES_MAX: Final = 256


class TooManyAttempts(Exception):
    """The attempt was not checked; the client may retry later."""


@dataclass
class _Source:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    pause: float = PAUSE_SECONDS
    not_before: float = 0.0


class AttemptLimit:
    def __init__(self) -> None:
        # In order of last use.
        self._sources: dict[str, _Source] = {}
        # FIFO with at most one attempt per source, so sources alternate.
        self._turn = asyncio.Lock()
        self._not_before = 0.0

    async def attempt(self, source: str, check: Callable[[], bool]) -> bool:
        """Returns the result of `check`, after a delay; raises TooManyAttempts if too many are waiting."""
        own = self._source(source)
        if own.waiting >= WAITING_MAX:
            raise TooManyAttempts
        own.waiting += 1
        try:
            async with own.turn:
                await _sleep_until(own.not_before)
                async with self._turn:
                    await _sleep_until(self._not_before)
                    return self._check(own, check)
        finally:
            own.waiting -= 1

    def _check(self, own: _Source, check: Callable[[], bool]) -> bool:
        if check():
            own.pause = PAUSE_SECONDS
            return True
        now = asyncio.get_running_loop().time()
        self._not_before = now + GAP_SECONDS
        own.not_before = now + own.pause
        own.pause = min(own.pause * 2, PAUSE_SECONDS_MAX)
        return False

    def _source(self, source: str) -> _Source:
        own = self._sources.pop(source, None) or self._add_source()
        self._sources[source] = own
        return own

    def _add_source(self) -> _Source:
        if len(self._sources) >= SOURCES_MAX:
            idle = next((name for name, each in self._sources.items() if not each.waiting), None)
            if idle is None:
                raise TooManyAttempts
            del self._sources[idle]
        return _Source()


async def _sleep_until(moment: float) -> None:
    if (wait := moment - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(wait)
