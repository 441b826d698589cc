"""Slows down whoever guesses a secret: one attempt at a time, and a pause after each wrong one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PAUSE_SECONDS: Final = 1.0
# Bounded: a stranger who guesses all day must not lock out the one who knows.
PAUSE_SECONDS_MAX: Final = 8.0
# Callers that wait for their turn; above this they are sent away at once.
WAITING_MAX: Final = 8


class TooManyAttempts(Exception):
    """Come again later."""


class AttemptLimit:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._pause = PAUSE_SECONDS
        self._not_before = 0.0

    async def attempt(self, check: Callable[[], bool]) -> bool:
        if self._waiting >= WAITING_MAX:
            raise TooManyAttempts
        self._waiting += 1
        try:
            async with self._turn:
                return await self._in_turn(check)
        finally:
            self._waiting -= 1

    async def _in_turn(self, check: Callable[[], bool]) -> bool:
        loop = asyncio.get_running_loop()
        if (wait := self._not_before - loop.time()) > 0:
            await asyncio.sleep(wait)
        if check():
            self._pause = PAUSE_SECONDS
            return True
        self._not_before = loop.time() + self._pause
        self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)
        return False
