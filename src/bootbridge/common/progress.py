"""Shows what a command is doing: one line per step, with its duration, and while it waits what is missing.

On a terminal the line of the running step is redrawn while it runs; a pipe or file gets plain lines, rarely;
without an output (`--json`) nothing is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import TextIO

from bootbridge.common.terminal import transient
from bootbridge.common.terminal.figures import duration
from bootbridge.common.terminal.terminal import Cell, Mark, Styled, Terminal
from bootbridge.errors import OperatorError

# A step shows what it waits for after this time; in a log the interval doubles up to the maximum.
WAITING_SECONDS = 2.0
WAITING_SECONDS_MAX = 30.0
POLL_SECONDS = 0.2
TITLE_COLUMNS = 24
# Twice a second is enough to see that it runs, and little in a recording.
REDRAW_SECONDS = 0.5
_SIGNS, _ASCII_SIGNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_DURATION_COLUMNS = 8


class Progress:
    """Renders steps one after the other: `begin`, `waiting` as often as one likes, `end` or `cancel`."""

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
        self._created = self._started = self._shown_at = clock()
        self._interval = WAITING_SECONDS
        self._turn = 0
        self._ended: Event | None = None

    @property
    def seconds(self) -> float:
        """The time since this object was created."""
        return self._clock() - self._created

    def begin(self, title: str) -> None:
        self.cancel()
        self._title, self._reason, self._interval = title, "", WAITING_SECONDS
        self._started = self._shown_at = self._clock()
        if self.terminal.live:
            self._draw()
            self._ended = Event()
            transient.redrawn_until(self._stop)
            Thread(target=self._redraw, args=(self._ended,), name="progress", daemon=True).start()

    def end(self, text: str, *, good: bool = True) -> None:
        self._stop()
        self._record(Mark.GOOD if good else Mark.BAD, text)

    def finished(self, title: str, text: str, seconds: float, *, good: bool) -> None:
        """Shows a step that something else has measured."""
        self._title, self._started = title, self._clock() - seconds
        self.end(text, good=good)

    def cancel(self) -> None:
        """Ends the step without a line."""
        self._stop()
        transient.erase()

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
        if self.terminal.live:
            self._draw()
        else:
            self._record(Mark.NONE, f"waiting: {reason}")

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
        """Writes a line of its own, below the titles of the steps."""
        self.terminal.record([Mark.NONE, Styled("", ""), text], (0, _DURATION_COLUMNS))

    # --- rendering

    def _record(self, mark: Mark, text: str) -> None:
        seconds = Styled(self._elapsed(), "dim")
        self.terminal.record([mark, seconds, self._title, text], (0, 0, TITLE_COLUMNS))

    def _elapsed(self) -> str:
        return f"{_column_text(self._clock() - self._started):>{_DURATION_COLUMNS}}"

    def _draw(self) -> None:
        signs = _SIGNS if self.terminal.unicode else _ASCII_SIGNS
        cells: list[Cell] = [Styled(signs[self._turn % len(signs)], "warning")]
        cells += [Styled(self._elapsed(), "dim"), f" {self._title}"]
        cells += [Styled(f" waiting: {self._reason}" if self._reason else "…", "dim")]
        self.terminal.transient(*cells)

    def _redraw(self, ended: Event) -> None:
        """Draws the line of the running step again and again, in a thread of its own."""
        while not ended.wait(REDRAW_SECONDS):
            with transient.LOCK:
                if ended.is_set():
                    return
                self._turn += 1
                try:
                    self._draw()
                except BrokenPipeError:
                    return

    def _stop(self) -> None:
        with transient.LOCK:
            if self._ended:
                self._ended.set()
                self._ended = None


def _column_text(seconds: float) -> str:
    """Returns a duration of at most 8 characters, so that a step of minutes does not shift its line."""
    if seconds < 60:
        return duration(seconds)
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
