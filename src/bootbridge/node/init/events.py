"""What happened during an init, numbered and kept, so that whoever comes late or again misses nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from bootbridge.node.init.messages import InitEvent, InitFailure, InitSuccess, StageEvent

# An init says a few hundred things. Above this the oldest are forgotten.
EVENTS_MAX: Final = 5000
TEXT_CHARACTERS_MAX: Final = 2000
# After a crash the numbers go on far above those of before, whatever these were: none is used twice.
NUMBERS_PER_START: Final = 1_000_000


class InitEvents:
    """Grows until it has an end: one success or one failure."""

    def __init__(self, resumed: int = 0) -> None:
        self._number = resumed * NUMBERS_PER_START
        self._kept: deque[InitEvent] = deque(maxlen=EVENTS_MAX)
        self._grown = asyncio.Event()
        self._over = False

    def stage(self, event: StageEvent) -> None:
        """As `ports.Say`; what a stage says after the end is nobody's business any more."""
        if not self._over:
            self._add(InitEvent(stage=replace(event, text=event.text[:TEXT_CHARACTERS_MAX])))

    def end(self, how: InitSuccess | InitFailure) -> None:
        assert not self._over, "an init ends once"
        self._over = True
        self._add(InitEvent(success=how) if isinstance(how, InitSuccess) else InitEvent(failure=how))

    def close(self) -> None:
        """There is no more to come, not even an end: it never began."""
        self._over = True
        self._grown.set()
        self._grown = asyncio.Event()

    async def after(self, seen: int) -> AsyncIterator[InitEvent]:
        """Everything above that number, as it comes, until the end. The end is told to everyone who asks."""
        while True:
            # Kept before looking: what grows while an event is on its way sets this very one.
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
        self._grown.set()
        self._grown = asyncio.Event()
