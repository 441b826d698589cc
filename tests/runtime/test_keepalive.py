"""Keepalive: a peer that vanished without a word is found out, one that lives is left alone."""

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
        """What the connections have to say reaches the other side, as long as the peer answers at all."""
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


def test_a_peer_that_answers_lives_for_ever(watched: Watched) -> None:
    """It is asked once an interval, and only when it was silent."""
    for _ in range(50):
        watched.after(INTERVAL / 2)
    assert watched.dead == []


def test_a_silent_peer_is_dead_when_a_ping_stays_unanswered(watched: Watched) -> None:
    """One interval of silence, then a ping, then its time to answer."""
    watched.after(INTERVAL)
    watched.answers = False
    watched.after(INTERVAL).after(ANSWER_SECONDS_MAX - 1)
    assert watched.dead == []
    watched.after(1)
    assert len(watched.dead) == 1


def test_a_doubted_peer_is_asked_at_once(watched: Watched) -> None:
    """Nobody waits for the interval, which is an hour by default."""
    watched.answers = False
    watched.connection.on_suspected()
    watched.after(ANSWER_SECONDS_MAX)
    assert len(watched.dead) == 1


def test_doubting_again_and_again_does_not_put_off_the_verdict(watched: Watched) -> None:
    """Every dial that it leaves unanswered raises the same doubt."""
    watched.answers = False
    for _ in range(4):
        watched.connection.on_suspected()
        watched.after(ANSWER_SECONDS_MAX / 4)
    assert len(watched.dead) == 1


def test_a_doubted_peer_that_answers_is_left_alone(watched: Watched) -> None:
    """It may be doubted again later."""
    for _ in range(3):
        watched.connection.on_suspected()
        watched.after(ANSWER_SECONDS_MAX)
    assert watched.dead == []
    watched.answers = False
    watched.connection.on_suspected()
    watched.after(ANSWER_SECONDS_MAX)
    assert len(watched.dead) == 1
