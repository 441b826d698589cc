"""Keepalive: a lost peer is detected, and a live one stays connected."""

from __future__ import annotations

import pytest

from bootbridge.ports.timers import Timers
from bootbridge.runtime.keepalive import ANSWER_SECONDS_MAX, Keepalive
from bootbridge.wire.http2_connection import Http2Connection

INTERVAL = 100.0


class Watched:
    """Two connections, one of them watched, and a clock that only the test moves."""

    def __init__(self) -> None:
        self._now = 0.0
        self.timers = Timers(lambda: self._now)
        self.connection, self._peer = Http2Connection(client=False), Http2Connection(client=True)
        self.answers = True
        self.dead: list[str] = []
        self.keepalive = Keepalive(self.connection, self.timers, INTERVAL, self.dead.append)
        self.exchange()

    def exchange(self) -> None:
        """Delivers the output of both connections, unless the peer does not answer."""
        for _ in range(3):
            sent = b"".join(self.connection.take_output())
            if sent and self.answers:
                self._peer.receive(sent)
                self.connection.receive(b"".join(self._peer.take_output()))

    def after(self, seconds: float) -> Watched:
        self.exchange()
        self._now += seconds
        self.timers.fire_due()
        self.exchange()
        return self


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_peer_that_answers_stays_connected(watched: Watched) -> None:
    """It receives one ping per silent interval."""
    for _ in range(50):
        watched.after(INTERVAL / 2)
    assert watched.dead == []


def test_a_silent_peer_is_lost_when_a_ping_is_not_answered(watched: Watched) -> None:
    """After one silent interval, a ping, and the time limit for its answer."""
    watched.after(INTERVAL)
    watched.answers = False
    watched.after(INTERVAL).after(ANSWER_SECONDS_MAX - 1)
    assert watched.dead == []
    watched.after(1)
    assert len(watched.dead) == 1


def test_a_suspected_peer_receives_a_ping_at_once(watched: Watched) -> None:
    """The keepalive interval is an hour by default."""
    watched.answers = False
    watched.connection.on_suspected()
    watched.after(ANSWER_SECONDS_MAX)
    assert len(watched.dead) == 1


def test_repeated_suspicion_does_not_extend_the_time_limit(watched: Watched) -> None:
    """Every unanswered dial raises the same suspicion."""
    watched.answers = False
    for _ in range(4):
        watched.connection.on_suspected()
        watched.after(ANSWER_SECONDS_MAX / 4)
    assert len(watched.dead) == 1


def test_a_suspected_peer_that_answers_stays_connected(watched: Watched) -> None:
    """It may be suspected again later."""
    for _ in range(3):
        watched.connection.on_suspected()
        watched.after(ANSWER_SECONDS_MAX)
    assert watched.dead == []
    watched.answers = False
    watched.connection.on_suspected()
    watched.after(ANSWER_SECONDS_MAX)
    assert len(watched.dead) == 1
