"""Turns signals into one exception, which is never raised between creating a thing and recording it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal was received. A BaseException, so that no `except Exception` takes it for a failed call."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number


class Interrupts:
    """While entered, the first SIGINT, SIGTERM or SIGHUP raises `Interrupted` in the main thread.

    Later signals are ignored: a second Ctrl-C must not interrupt the clean-up.
    """

    def __init__(self) -> None:
        self._deferrals = 0
        self._pending = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defers a signal until the block has ended without an exception."""
        self._deferrals += 1
        try:
            yield
        finally:
            self._deferrals -= 1
        if self._pending and not self._deferrals:
            self.ignore_from_now_on()
            raise Interrupted(self._pending)

    def ignore_from_now_on(self) -> None:
        """Call this when the clean-up starts."""
        self._deferrals += 1

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._deferrals:
            self._pending = number
            return
        self.ignore_from_now_on()
        raise Interrupted(number)
