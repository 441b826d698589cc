"""Runs the demo's steps and prints each as a numbered line with its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bootbridge.common.progress import Progress
from bootbridge.demo.interrupts import Interrupted

POLL_SECONDS = 0.01


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


class Steps:
    """Runs steps one after the other, prints and keeps each."""

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.perf_counter) -> None:
        self.progress = progress
        self.all: list[DemoStep] = []
        self._clock = clock

    @contextmanager
    def step(self, title: str) -> Iterator[DemoStep]:
        """Runs the block as one step; an exception fails the step and propagates."""
        step = DemoStep(len(self.all) + 1, title)
        self.all.append(step)
        started = self._clock()
        self.progress.begin(f"{step.number:>2} {title}")
        ok = False
        try:
            yield step
            ok = True
        except Interrupted as interruption:
            step.detail = f"interrupted ({interruption})"
            raise
        except BaseException as error:
            step.detail = str(error) or type(error).__name__
            raise
        finally:
            step.ok, step.milliseconds = ok, (self._clock() - started) * 1000
            self.progress.end(step.detail, good=ok)

    def waiting(self, what: str) -> None:
        self.progress.waiting(what)

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float) -> bool:
        """Polls the condition; returns False if it is still false after `seconds`."""
        return not self.progress.wait(lambda: "" if condition() else what, seconds, poll_seconds=POLL_SECONDS)
