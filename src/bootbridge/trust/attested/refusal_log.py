"""Logs what unattested peers cause, at a bounded rate: any peer on the network can cause these lines.

In each window, LINES_MAX lines are logged, LINES_PER_SOURCE_MAX of them by one source. The others are
counted, and one line at the end of the window has their number and the last of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from bootbridge.runtime import logs
from bootbridge.wire.addresses import source_of

WINDOW_SECONDS: Final = 60.0
LINES_MAX: Final = 10
LINES_PER_SOURCE_MAX: Final = 3
# Part of the text is the peer's.
REASON_CHARACTERS_MAX: Final = 600


class RefusalLog:
    """`close` it, to log the last count."""

    def __init__(self) -> None:
        self.refused = 0  # evidence, since the start
        self.dropped = 0  # lines, since the start
        self._lines: Counter[str] = Counter()  # of this window, by source
        self._dropped_before = 0
        self._last_dropped: dict[str, str] = {}
        self._window: asyncio.TimerHandle | None = None

    def evidence_refused(self, address: str, reason: object) -> None:
        self.refused += 1
        self.event(logs.WARNING, "evidence refused", address, reason)

    def event(self, level: int, message: str, address: str, reason: object = "") -> None:
        """Logs a constant message about this peer, or counts it."""
        if self._window is None:
            self._window = asyncio.get_running_loop().call_later(WINDOW_SECONDS, self._end_window)
        source = source_of(address)
        details = {"peer": address}
        if reason:
            details["reason"] = str(reason)[:REASON_CHARACTERS_MAX]
        if self._lines.total() >= LINES_MAX or self._lines[source] >= LINES_PER_SOURCE_MAX:
            self.dropped += 1
            self._last_dropped = details
            return
        self._lines[source] += 1
        logs.event("attested", level, message, **details)

    def close(self) -> None:
        if self._window is not None:
            self._window.cancel()
            self._end_window()

    def _end_window(self) -> None:
        self._window = None
        self._lines.clear()
        if count := self.dropped - self._dropped_before:
            self._dropped_before = self.dropped
            last = {f"last_{name}": value for name, value in self._last_dropped.items()}
            logs.event("attested", logs.WARNING, "lines about unattested peers dropped", count=count, **last)
