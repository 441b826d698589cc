"""Runs the demo's steps and prints each as a numbered line with its time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from bootbridge.demo.interrupts import Interrupted

# After this time, and then at this interval, a waiting step prints what it waits for.
WAITING_SECONDS = 2.0
TITLE_COLUMNS = 20

_COLOURS = {"good": "32", "bad": "31;1", "dim": "2", "strong": "1"}


class StepFailed(Exception):
    """A step failed; `log_of` names the process whose log may explain it."""

    def __init__(self, message: str, log_of: str = "") -> None:
        super().__init__(message)
        self.log_of = log_of


@dataclass
class DemoStep:
    """One step, its result and its duration; after a failure, the last log lines of the process concerned."""

    number: int
    title: str
    detail: str = ""
    ok: bool | None = None
    milliseconds: float = 0.0
    log_tail: list[str] = field(default_factory=list)


class Terminal:
    """Writes lines to a terminal or a file, or nowhere if `out` is None."""

    def __init__(self, out: TextIO | None, *, environment: Mapping[str, str] = os.environ) -> None:
        self._out = out
        self._live = out is not None and out.isatty() and environment.get("TERM") != "dumb"
        self._colour = self._live and not environment.get("NO_COLOR")
        self._transient = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the reader closed the output before the end (`| head`)."""
        return self._closed

    def line(self, text: str = "") -> None:
        self._write(self._erase() + text + "\n")

    def transient(self, text: str) -> None:
        """Shows a line that the next one overwrites; only on a terminal."""
        if self._live:
            self._write(self._erase() + text[: self._columns() - 1])
            self._transient = True

    def progress(self, text: str) -> None:
        if self._live:
            self.transient(text)
        else:
            self.line(text)

    def paint(self, kind: str, text: str) -> str:
        return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if self._colour else text

    def mark(self, ok: bool) -> str:
        good, bad = ("✓", "✗") if self._has("✓✗") else ("ok", "FAILED")
        return self.paint("good", good) if ok else self.paint("bad", bad)

    def _has(self, characters: str) -> bool:
        try:
            characters.encode(getattr(self._out, "encoding", None) or "utf-8")
        except UnicodeEncodeError:
            return False
        return True

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
        if self._out is None:
            return
        try:
            self._out.write(self._fit(text))
            self._out.flush()
        except OSError:
            self._out, self._closed = None, True
            self._live = False
            raise Interrupted(signal.SIGPIPE) from None

    def _fit(self, text: str) -> str:
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        return text.encode(encoding, "replace").decode(encoding)


class Steps:
    """Runs steps one after the other, prints and keeps each."""

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.perf_counter) -> None:
        self.terminal = terminal
        self.all: list[DemoStep] = []
        self._clock = clock
        self._started = 0.0
        self._shown_at = 0.0

    @contextmanager
    def step(self, title: str) -> Iterator[DemoStep]:
        """Runs the block as one step; an exception fails the step and propagates."""
        step = DemoStep(len(self.all) + 1, title)
        self.all.append(step)
        self._started = self._shown_at = self._clock()
        self.terminal.transient(f"{step.number:>3}   {'':>9}  {title} …")
        try:
            yield step
        except Interrupted as interruption:
            self._end(step, False, f"interrupted ({interruption})")
            raise
        except BaseException as error:
            self._end(step, False, str(error) or type(error).__name__)
            raise
        self._end(step, True, step.detail)

    def waiting(self, what: str) -> None:
        """Call this while waiting: prints `what` every WAITING_SECONDS."""
        now = self._clock()
        if now - self._shown_at >= WAITING_SECONDS:
            self._shown_at = now
            self.terminal.progress(f"{'':>15} … {what} ({now - self._started:.0f} s)")

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float) -> bool:
        """Polls the condition; returns False if it is still false after `seconds`."""
        deadline = self._clock() + seconds
        while not condition():
            if self._clock() > deadline:
                return False
            self.waiting(f"waiting for {what}")
            time.sleep(0.01)
        return True

    def _end(self, step: DemoStep, ok: bool, detail: str) -> None:
        step.ok, step.detail = ok, detail
        step.milliseconds = (self._clock() - self._started) * 1000
        terminal = self.terminal
        duration = terminal.paint("dim", f"{step.milliseconds:>6.0f} ms")
        title = terminal.paint("strong", f"{step.title:<{TITLE_COLUMNS}}")
        terminal.line(f"{step.number:>3} {terminal.mark(ok)} {duration}  {title} {detail}")
