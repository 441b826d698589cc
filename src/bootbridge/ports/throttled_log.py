"""Warnings that a peer can provoke: a few in each interval, and the number of those left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bootbridge.ports.event_log import EventLog

LINES_MAX: Final = 20
INTERVAL_SECONDS: Final = 10.0


class ThrottledLog:
    """Writes at most ``LINES_MAX`` lines in ``INTERVAL_SECONDS``; the next line has the number left out."""

    def __init__(self, event_log: EventLog, now: Callable[[], float]) -> None:
        self._event_log = event_log
        self._now = now
        self._since = now()
        self._lines = 0
        self._left_out = 0

    def warning(self, message: str, **fields: object) -> None:
        now = self._now()
        if now - self._since >= INTERVAL_SECONDS:
            self._since = now
            self._lines = 0
        if self._lines >= LINES_MAX:
            self._left_out += 1
            return
        self._lines += 1
        if self._left_out:
            fields = {**fields, "lines_left_out": self._left_out}
            self._left_out = 0
        self._event_log.warning(message, **fields)
