"""Tells whoever waits what is being done, for how long already, and what is still missing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TextIO

# Whoever waits longer than this wants to know for what.
PATIENCE_SECONDS = 2.0
POLL_SECONDS = 0.2
TITLE_COLUMNS = 24

_COLOURS = {"good": "32", "bad": "31;1", "dim": "2"}


class Progress:
    """One line for each step when it has ended, and while it lasts one every few seconds."""

    def __init__(
        self,
        out: TextIO | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._out = out
        self._clock = clock
        live = out is not None and out.isatty() and environment.get("TERM") != "dumb"
        self._colour = live and not environment.get("NO_COLOR")
        self._title = ""
        self._started = self._told = clock()

    def begin(self, title: str) -> None:
        self._title = title
        self._started = self._told = self._clock()

    def end(self, text: str, *, good: bool = True) -> None:
        took = self._clock() - self._started
        seconds = self._paint("dim", f"{took:6.1f} s")
        mark = self._paint("good", "ok  ") if good else self._paint("bad", "FAIL")
        self.line(f"{mark} {seconds}  {self._title:<{TITLE_COLUMNS}} {text}".rstrip())

    def waiting(self, reason: str) -> None:
        """Speaks up only when patience ends, and then at that pace."""
        now = self._clock()
        if now - self._told >= PATIENCE_SECONDS:
            self._told = now
            self.line(f"     {now - self._started:6.1f} s  {self._title:<{TITLE_COLUMNS}} waiting: {reason}")

    def wait(self, reason: Callable[[], str], seconds: float) -> str:
        """Wait until there is no reason to wait any more; the last reason if time ran out."""
        deadline = self._clock() + seconds
        while still := reason():
            if self._clock() >= deadline:
                return still
            self.waiting(still)
            time.sleep(POLL_SECONDS)
        return ""

    def line(self, text: str) -> None:
        if self._out is not None:
            self._out.write("".join(c if c.isprintable() or c == "\x1b" else " " for c in text) + "\n")
            self._out.flush()

    def _paint(self, kind: str, text: str) -> str:
        return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if self._colour else text
