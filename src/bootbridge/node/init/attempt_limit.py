"""Slows down whoever guesses a secret: a source makes one attempt at a time, and pauses after each wrong one.

Sources go round: a stranger who guesses all day delays whoever comes from elsewhere by one turn, not by its
queue and its pauses. Many sources together are held to a few guesses a second, which is what keeps a secret
of 256 bits from whoever has a network full of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

PAUSE_SECONDS: Final = 1.0
# Bounded: somebody who knows the secret may share an address with somebody who guesses.
PAUSE_SECONDS_MAX: Final = 8.0
# After a wrong attempt nobody's is looked at: at most four guesses a second, from wherever they come, and
# whoever knows waits no longer than this for each of the others who are there.
GAP_SECONDS: Final = 0.25
# Callers of one source that wait for their turn; above this they are sent away at once.
WAITING_MAX: Final = 8
# Those that are remembered. For another one, who has been away longest is forgotten with its pause: the gap
# still holds. While somebody of each is waiting, another is sent away; there are fewer channels than that.
SOURCES_MAX: Final = 256


class TooManyAttempts(Exception):
    """Come again later."""


@dataclass
class _Source:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    pause: float = PAUSE_SECONDS
    not_before: float = 0.0


class AttemptLimit:
    def __init__(self) -> None:
        # Who was here last is the last.
        self._sources: dict[str, _Source] = {}
        # First come, first served, and one of each source comes at a time: so they go round.
        self._turn = asyncio.Lock()
        self._not_before = 0.0

    async def attempt(self, source: str, check: Callable[[], bool]) -> bool:
        """What the check says, in turn; TooManyAttempts if too many wait for theirs."""
        own = self._of(source)
        if own.waiting >= WAITING_MAX:
            raise TooManyAttempts
        own.waiting += 1
        try:
            async with own.turn:
                await _until(own.not_before)
                async with self._turn:
                    await _until(self._not_before)
                    return self._checked(own, check)
        finally:
            own.waiting -= 1

    def _checked(self, own: _Source, check: Callable[[], bool]) -> bool:
        if check():
            own.pause = PAUSE_SECONDS
            return True
        now = asyncio.get_running_loop().time()
        self._not_before = now + GAP_SECONDS
        own.not_before = now + own.pause
        own.pause = min(own.pause * 2, PAUSE_SECONDS_MAX)
        return False

    def _of(self, source: str) -> _Source:
        own = self._sources.pop(source, None) or self._new()
        self._sources[source] = own
        return own

    def _new(self) -> _Source:
        if len(self._sources) >= SOURCES_MAX:
            idle = next((name for name, each in self._sources.items() if not each.waiting), None)
            if idle is None:
                raise TooManyAttempts
            del self._sources[idle]
        return _Source()


async def _until(moment: float) -> None:
    if (wait := moment - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(wait)
