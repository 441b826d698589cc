"""Detects a lost peer: sends a PING after a silent interval, reports the peer dead without an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bootbridge.ports.timers import Timer, Timers
from bootbridge.wire.http2_connection import Http2Connection

ANSWER_SECONDS_MAX: Final = 20.0
# grpc-go's minimum too; Go servers close connections that ping more often.
INTERVAL_SECONDS_MIN: Final = 10.0


class Keepalive:
    def __init__(
        self, connection: Http2Connection, timers: Timers, interval: float, on_dead: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._timers = timers
        self._interval = max(interval, INTERVAL_SECONDS_MIN)
        self._on_dead = on_dead
        self._seen = connection.reads_seen
        self._pinged = False
        self._timer: Timer = timers.after(self._interval, self._check)
        connection.on_suspected = self.probe

    def close(self) -> None:
        self._timer.cancel()

    def probe(self) -> None:
        """Pings now, because something else suggests that the peer is lost."""
        if not self._pinged:
            self._timer.cancel()
            self._ping()

    def _check(self) -> None:
        if self._connection.reads_seen != self._seen:
            self._seen = self._connection.reads_seen
            self._timer = self._timers.after(self._interval, self._check)
        else:
            self._ping()

    def _ping(self) -> None:
        self._seen = self._connection.reads_seen
        self._pinged = True
        self._connection.ping()
        self._timer = self._timers.after(ANSWER_SECONDS_MAX, self._on_timeout)

    def _on_timeout(self) -> None:
        self._pinged = False
        if self._connection.reads_seen != self._seen:
            self._check()
        else:
            self._on_dead(f"keepalive timed out: no answer to a PING for {ANSWER_SECONDS_MAX:.0f}s")
