"""Shows what a command is doing: one line per step, with its duration, and while it waits what is missing.

On a terminal the line of the running step is overwritten; a pipe or file gets plain lines, rarely; without
an output (`--json`) nothing is written. `Progress` renders steps, `Terminal` lines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from bootbridge.errors import OperatorError

# A step shows what it waits for after this time; in a log the interval doubles up to the maximum.
WAITING_SECONDS = 2.0
WAITING_SECONDS_MAX = 30.0
POLL_SECONDS = 0.2
TITLE_COLUMNS = 24

_COLOURS = {"good": "32", "bad": "31;1", "dim": "2", "strong": "1"}


class Terminal:
    """Writes lines to a terminal, pipe or file, or nowhere if `out` is None."""

    def __init__(self, out: TextIO | None, *, environment: Mapping[str, str] = os.environ) -> None:
        self._out = out
        self.live = out is not None and out.isatty() and environment.get("TERM") != "dumb"
        self._colour = self.live and not environment.get("NO_COLOR")
        self._transient = False
        self.closed = False  # the reader closed the pipe before the end (`| head`)

    def line(self, text: str = "") -> None:
        self._write(self._erase() + text + "\n")

    def transient(self, text: str) -> None:
        """Shows a line that the next one overwrites; only on a terminal."""
        if self.live:
            self._write(self._erase() + text[: self._columns() - 1])
            self._transient = True

    def paint(self, kind: str, text: str) -> str:
        return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if self._colour else text

    def mark(self, good: bool) -> str:
        return self.paint("good", "ok  ") if good else self.paint("bad", "FAIL")

    def _columns(self) -> int:
        assert self._out is not None
        try:
            # Some terminals report 0 columns.
            return os.get_terminal_size(self._out.fileno()).columns or 80
        except OSError:
            return 80

    def _erase(self) -> str:
        erase = "\r\x1b[K" if self._transient else ""
        self._transient = False
        return erase

    def _write(self, text: str) -> None:
        """Raises BrokenPipeError once if the output is closed, and writes nothing from then on."""
        if self._out is None:
            return
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        try:
            self._out.write(text.encode(encoding, "replace").decode(encoding))
            self._out.flush()
        except OSError:
            self._out, self.live, self.closed = None, False, True
            raise BrokenPipeError from None


class Progress:
    """Renders steps one after the other: `begin`, `waiting` as often as one likes, `end`."""

    def __init__(
        self,
        out: TextIO | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.terminal = Terminal(out, environment=environment)
        self._clock = clock
        self._title = self._reason = ""
        self._started = self._shown_at = clock()
        self._interval = WAITING_SECONDS

    def begin(self, title: str) -> None:
        self._title, self._reason, self._interval = _printable(title), "", WAITING_SECONDS
        self._started = self._shown_at = self._clock()
        self.terminal.transient(f"{'':14} {self._title} …")

    def end(self, text: str, *, good: bool = True) -> None:
        seconds = self.terminal.paint("dim", f"{self._clock() - self._started:6.1f} s")
        result = f"{self._title:<{TITLE_COLUMNS}} {_printable(text)}".rstrip()
        self.terminal.line(f"{self.terminal.mark(good)} {seconds}  {result}")

    def step(self, title: str, act: Callable[[], str]) -> None:
        """Runs `act` as one step and shows the text that it returns; an OperatorError fails the step."""
        self.begin(title)
        try:
            text = act()
        except OperatorError as error:
            self.end(str(error), good=False)
            raise
        self.end(text)

    def waiting(self, reason: str) -> None:
        """Shows the reason at intervals: constant on a terminal, growing in a log while it stays the same."""
        now = self._clock()
        is_new = reason != self._reason
        if now - self._shown_at < (WAITING_SECONDS if self.terminal.live or is_new else self._interval):
            return
        self._interval = WAITING_SECONDS if is_new else min(2 * self._interval, WAITING_SECONDS_MAX)
        self._shown_at, self._reason = now, reason
        elapsed = f"{now - self._started:6.1f} s"
        text = f"     {elapsed}  {self._title:<{TITLE_COLUMNS}} waiting: {_printable(reason)}"
        if self.terminal.live:
            self.terminal.transient(text)
        else:
            self.terminal.line(text)

    def wait(self, reason: Callable[[], str], seconds: float, *, poll_seconds: float = POLL_SECONDS) -> str:
        """Waits until `reason` returns an empty text; returns the last reason after `seconds`."""
        deadline = self._clock() + seconds
        while still := reason():
            if self._clock() >= deadline:
                return still
            self.waiting(still)
            time.sleep(poll_seconds)
        return ""

    def line(self, text: str) -> None:
        self.terminal.line(_printable(text))


def _printable(text: str) -> str:
    """Texts may come from a cluster or a node; none of them may control the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
