"""Signals become one exception, and never in the moment between making a thing and noting it down."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """We were told to stop. Not an `Exception`: nobody on the way out may mistake it for a failed call."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number


class Interrupts:
    """While entered, the first SIGINT, SIGTERM or SIGHUP raises `Interrupted` in the main thread.

    Only the first: what follows it is clean-up, and a second Ctrl-C must not leave half of that undone.
    """

    def __init__(self) -> None:
        self._holds = 0
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
    def held(self) -> Iterator[None]:
        """Inside, a signal waits; it is raised when the block ends well."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._pending and not self._holds:
            self.ignore_from_now_on()
            raise Interrupted(self._pending)

    def ignore_from_now_on(self) -> None:
        """Clean-up has begun for another reason than a signal."""
        self._holds += 1

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._holds:
            self._pending = number
            return
        self.ignore_from_now_on()
        raise Interrupted(number)
