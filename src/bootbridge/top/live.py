"""The loop of the live view: samples from a thread, keys and signals from the terminal, then a frame."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bootbridge.errors import OperatorError
from bootbridge.top.fetch import RowQuery, SampleSource
from bootbridge.top.keys import KeyDecoder
from bootbridge.top.rates import History
from bootbridge.top.screen import TerminalScreen
from bootbridge.top.snapshot import Snapshot
from bootbridge.top.tables import tables_of
from bootbridge.top.text import printable
from bootbridge.top.view import LinkState, ScreenFrame, frame
from bootbridge.top.view_state import ViewState

# How long the rest of a key's sequence may take; slow connections send it in two packets.
ESCAPE_SECONDS = 0.05
# Times on the screen, such as of a lost connection, advance at least this often.
REDRAW_SECONDS = 1.0
READ_BYTES = 1024


class SampleThread(threading.Thread):
    """Gets a sample after each interval, so that a slow program does not delay keys."""

    def __init__(self, client: SampleSource, interval_seconds: float, wake: Callable[[], None]) -> None:
        super().__init__(name="top samples", daemon=True)
        self._client, self._interval, self._wake = client, interval_seconds, wake
        self._lock = threading.Lock()
        self._results: list[Snapshot | OperatorError] = []
        self._at_once = threading.Event()
        self._ended = False
        self.query = RowQuery()

    def ask(self, query: RowQuery) -> None:
        """Changes which rows the next samples have; another choice is sampled at once."""
        if query != self.query:
            self.query = query
            self._at_once.set()

    def end(self) -> None:
        """Does not wait: a request may still run, and ends with the process."""
        self._ended = True
        self._at_once.set()

    def results(self) -> list[Snapshot | OperatorError]:
        with self._lock:
            found, self._results = self._results, []
        return found

    def run(self) -> None:
        while True:
            self._at_once.wait(self._interval)
            self._at_once.clear()
            if self._ended:
                return
            try:
                result: Snapshot | OperatorError = self._client.sample(self.query)
            except OperatorError as error:
                result = error
            with self._lock:
                self._results = [*self._results[-10:], result]
            if not self._ended:
                self._wake()


@dataclass
class LiveView:
    """Runs until a key or a signal ends it."""

    client: SampleSource
    source: str
    interval_seconds: float
    history: History

    def run(self) -> int:
        """Returns the signal that ended it; 0 if a key or ctrl-c did."""
        self._state, self._error, self._lost_at = ViewState(), "", 0.0
        self._decoder = KeyDecoder()
        with TerminalScreen() as screen:
            samples = SampleThread(self.client, self.interval_seconds, screen.wake)
            samples.start()
            try:
                self._draw(screen)
                while not self._state.ended and not screen.ended_by:
                    pressed = self._wait(screen)
                    self._take(samples.results())
                    for key in pressed:
                        self._press(key, screen)
                    self._draw(screen)
                    self._ask(samples)
            finally:
                samples.end()
            return 0 if screen.ended_by == signal.SIGINT else screen.ended_by

    def _wait(self, screen: TerminalScreen) -> list[str]:
        """Waits for keys, a sample, a signal or the next redraw; returns the keys."""
        seconds = ESCAPE_SECONDS if self._decoder.is_waiting else REDRAW_SECONDS
        ready, _, _ = select.select(screen.readable, (), (), seconds)
        screen.drain_wakeups()
        terminal = screen.readable[0]
        if terminal not in ready:
            return self._decoder.flush() if not ready else []
        data = os.read(terminal, READ_BYTES)
        if not data:  # the terminal was closed
            return ["q"]
        return self._decoder.feed(data)

    def _press(self, key: str, screen: TerminalScreen) -> None:
        assert self.history.current is not None
        shown = self._frame(screen)
        tables = tables_of(self.history.current)
        self._state = self._state.pressed(key, tables, shown.columns, shown.page)

    def _take(self, results: list[Snapshot | OperatorError]) -> None:
        for result in results:
            if isinstance(result, OperatorError):
                self._lost_at = self._lost_at if self._error else time.monotonic()
                self._error = printable(str(result))
            else:
                self._error = ""
                if not self._state.paused:
                    self.history.add(result)

    def _ask(self, samples: SampleThread) -> None:
        assert self.history.current is not None
        samples.ask(self._state.query(self.history.current, tables_of(self.history.current)))

    def _draw(self, screen: TerminalScreen) -> None:
        shown = self._frame(screen)
        self._state = shown.state
        screen.draw(shown.lines)

    def _frame(self, screen: TerminalScreen) -> ScreenFrame:
        width, height = screen.size()
        lost = time.monotonic() - self._lost_at if self._error else 0.0
        link = LinkState(self.source, self.interval_seconds, self._error, lost)
        return frame(self.history, self._state, link, width, height)
