"""Tells whoever waits what is being done, for how long already, and what is still missing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from bootbridge.errors import OperatorError

# Whoever waits longer than this wants to know for what; in a log, less and less often.
PATIENCE_SECONDS = 2.0
PATIENCE_SECONDS_MAX = 30.0
POLL_SECONDS = 0.2
TITLE_COLUMNS = 24

_COLOURS = {"good": "32", "bad": "31;1", "dim": "2"}


class Progress:
    """One line for each step when it has ended; while it lasts, on a terminal one that changes in place."""

    def __init__(
        self,
        out: TextIO | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._out = out
        self._clock = clock
        self._live = out is not None and out.isatty() and environment.get("TERM") != "dumb"
        self._colour = self._live and not environment.get("NO_COLOR")
        self._title = self._reason = ""
        self._started = self._told = clock()
        self._patience = PATIENCE_SECONDS

    def begin(self, title: str) -> None:
        self._title, self._reason, self._patience = title, "", PATIENCE_SECONDS
        self._started = self._told = self._clock()

    def end(self, text: str, *, good: bool = True) -> None:
        took = self._clock() - self._started
        seconds = self._paint("dim", f"{took:6.1f} s")
        mark = self._paint("good", "ok  ") if good else self._paint("bad", "FAIL")
        said = _printable(f"{self._title:<{TITLE_COLUMNS}} {text}".rstrip())
        self._line(f"{mark} {seconds}  {said}")

    def step(self, title: str, act: Callable[[], str]) -> None:
        """Do it, and tell what it says when it has ended; what it raises is told and raised on."""
        self.begin(title)
        try:
            said = act()
        except OperatorError as error:
            self.end(str(error), good=False)
            raise
        self.end(said)

    def waiting(self, reason: str) -> None:
        """Speaks up when patience ends: at that pace on a terminal, in a log when there is news or seldom."""
        now = self._clock()
        news = reason != self._reason
        if now - self._told < (PATIENCE_SECONDS if self._live or news else self._patience):
            return
        self._patience = PATIENCE_SECONDS if news else min(2 * self._patience, PATIENCE_SECONDS_MAX)
        self._told, self._reason = now, reason
        text = f"     {now - self._started:6.1f} s  {self._title:<{TITLE_COLUMNS}} waiting: {reason}"
        if self._live:
            self._write(f"\r\x1b[K{_printable(text)[: shutil.get_terminal_size().columns - 1]}")
        else:
            self.line(text)

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
        self._line(_printable(text))

    def _line(self, text: str) -> None:
        # On a terminal it takes the place of what was being waited for.
        self._write(("\r\x1b[K" if self._live else "") + text + "\n")

    def _write(self, text: str) -> None:
        if self._out is not None:
            self._out.write(text)
            self._out.flush()

    def _paint(self, kind: str, text: str) -> str:
        return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if self._colour else text


def _printable(text: str) -> str:
    """Reasons may come from a cluster or a node: none of them commands a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
