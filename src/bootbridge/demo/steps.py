"""What the demo shows: numbered steps with their time, one line each, as they happen."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from bootbridge.demo.interrupts import Interrupted

# Whoever waits longer than this wants to know for what.
PATIENCE_SECONDS = 2.0
TITLE_COLUMNS = 20

_COLOURS = {"good": "32", "bad": "31;1", "dim": "2", "strong": "1"}


class StepFailed(Exception):
    """A step did not hold. `log_of` names the program whose last words may explain it."""

    def __init__(self, message: str, log_of: str = "") -> None:
        super().__init__(message)
        self.log_of = log_of


@dataclass
class Step:
    """One step: what was tried, what came out, how long it took, what the program at fault said last."""

    number: int
    title: str
    detail: str = ""
    ok: bool | None = None
    milliseconds: float = 0.0
    last_words: list[str] = field(default_factory=list)


class Screen:
    """Lines on a terminal or in a file; silent when there is nobody to read them."""

    def __init__(self, out: TextIO | None, *, environment: Mapping[str, str] = os.environ) -> None:
        self._out = out
        self._live = out is not None and out.isatty() and environment.get("TERM") != "dumb"
        self._colour = self._live and not environment.get("NO_COLOR")
        self._transient = False
        self._abandoned = False

    @property
    def abandoned(self) -> bool:
        """Whether the reader left before the end (`| head`)."""
        return self._abandoned

    def line(self, text: str = "") -> None:
        self._write(self._erase() + text + "\n")

    def transient(self, text: str) -> None:
        """What happens right now: overwritten by the next line. Only a terminal can show that."""
        if self._live:
            self._write(self._erase() + text[: self._columns() - 1])
            self._transient = True

    def progress(self, text: str) -> None:
        """What we are waiting for."""
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
            # A terminal that does not know its size says 0.
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
            # Be silent from now on, and stop.
            self._out, self._abandoned = None, True
            self._live = False
            raise Interrupted(signal.SIGPIPE) from None

    def _fit(self, text: str) -> str:
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        return text.encode(encoding, "replace").decode(encoding)


class Steps:
    """Runs the steps of the story one after the other, shows and remembers each."""

    def __init__(self, screen: Screen, clock: Callable[[], float] = time.perf_counter) -> None:
        self.screen = screen
        self.taken: list[Step] = []
        self._clock = clock
        self._started = 0.0
        self._shown_at = 0.0

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Whatever happens inside is this step; an exception makes it a failed one and goes on its way."""
        step = Step(len(self.taken) + 1, title)
        self.taken.append(step)
        self._started = self._shown_at = self._clock()
        self.screen.transient(f"{step.number:>3}   {'':>9}  {title} …")
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
        """Call this while waiting: it speaks up only when patience ends, then at that pace."""
        now = self._clock()
        if now - self._shown_at >= PATIENCE_SECONDS:
            self._shown_at = now
            self.screen.progress(f"{'':>15} … {what} ({now - self._started:.0f} s)")

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float) -> bool:
        """Look again and again until it holds (true) or the time is over (false)."""
        deadline = self._clock() + seconds
        while not condition():
            if self._clock() > deadline:
                return False
            self.waiting(f"waiting for {what}")
            time.sleep(0.01)
        return True

    def _end(self, step: Step, ok: bool, detail: str) -> None:
        step.ok, step.detail = ok, detail
        step.milliseconds = (self._clock() - self._started) * 1000
        screen = self.screen
        took = screen.paint("dim", f"{step.milliseconds:>6.0f} ms")
        title = screen.paint("strong", f"{step.title:<{TITLE_COLUMNS}}")
        screen.line(f"{step.number:>3} {screen.mark(ok)} {took}  {title} {detail}")
