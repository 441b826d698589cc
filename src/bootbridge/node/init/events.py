"""The numbered events of an init, kept so that a client that reconnects receives the ones it missed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from bootbridge.node.init.messages import InitEvent, InitFailure, InitSuccess, StageEvent

# An init has a few hundred events; beyond this bound the oldest are dropped.
EVENTS_MAX: Final = 5000
TEXT_CHARACTERS_MAX: Final = 2000
# After a crash numbering continues far above the numbers used before, which are unknown: none is reused.
NUMBERS_PER_START: Final = 1_000_000


class InitEvents:
    """An append-only list that ends with one success or one failure."""

    def __init__(self, resumed: int = 0) -> None:
        self._number = resumed * NUMBERS_PER_START
        self._kept: deque[InitEvent] = deque(maxlen=EVENTS_MAX)
        self._grown = asyncio.Event()
        self._over = False

    def stage(self, event: StageEvent) -> None:
        """A ProgressCallback; ignores events after the end."""
        if not self._over:
            self._add(InitEvent(stage=replace(event, text=event.text[:TEXT_CHARACTERS_MAX])))

    def end(self, outcome: InitSuccess | InitFailure) -> None:
        assert not self._over, "an init ends once"
        self._over = True
        self._add(
            InitEvent(success=outcome) if isinstance(outcome, InitSuccess) else InitEvent(failure=outcome)
        )

    def close(self) -> None:
        """Ends the list without an outcome: the init never started."""
        self._over = True
        self._wake()

    async def after(self, seen: int) -> AsyncIterator[InitEvent]:
        """Yields the events with a number above `seen`, as they are added, up to and including the end."""
        while True:
            # Read before the list: an event that is added during a yield sets this same asyncio.Event.
            grown, over = self._grown, self._over
            for event in [each for each in self._kept if each.number > seen]:
                seen = event.number
                yield event
            if over:
                return
            await grown.wait()

    def _add(self, event: InitEvent) -> None:
        self._number += 1
        self._kept.append(replace(event, number=self._number))
        self._wake()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()
