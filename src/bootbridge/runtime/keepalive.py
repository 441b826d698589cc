"""Notice a peer that vanished without a word: ping when it was silent, give up when nothing comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bootbridge.ports.timers import Timer, Timers
from bootbridge.wire.http2_connection import Http2Connection

ANSWER_SECONDS_MAX: Final = 20.0
# grpc-go does not ping more often than this either; servers punish it.
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
        self._asked = False
        self._timer: Timer = timers.after(self._interval, self._look)
        connection.on_suspected = self.probe

    def close(self) -> None:
        self._timer.cancel()

    def probe(self) -> None:
        """Ask now: something else raised the suspicion that the peer is gone."""
        if not self._asked:
            self._timer.cancel()
            self._ask()

    def _look(self) -> None:
        if self._connection.reads_seen != self._seen:
            self._seen = self._connection.reads_seen
            self._timer = self._timers.after(self._interval, self._look)
        else:
            self._ask()

    def _ask(self) -> None:
        self._seen = self._connection.reads_seen
        self._asked = True
        self._connection.ping()
        self._timer = self._timers.after(ANSWER_SECONDS_MAX, self._judge)

    def _judge(self) -> None:
        self._asked = False
        if self._connection.reads_seen != self._seen:
            self._look()
        else:
            self._on_dead(f"keepalive: nothing came for {ANSWER_SECONDS_MAX:.0f} s after a ping")
