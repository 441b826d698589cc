"""How fast a listener accepts connections."""

from __future__ import annotations

import pytest

from bootbridge.runtime.accept_rate import ACCEPTS_PER_SECOND, BURST, AcceptRate


class Listening:
    """A listener in front of a queue that is never empty."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rate = AcceptRate(lambda: self.now)

    def accept_all(self) -> int:
        """Returns how many were accepted before the rate refused one."""
        accepted = 0
        while self.rate.permits():
            self.rate.count()
            accepted += 1
        return accepted


@pytest.fixture
def listening() -> Listening:
    return Listening()


def test_a_burst_is_accepted_at_once(listening: Listening) -> None:
    assert listening.accept_all() == BURST


def test_a_flood_is_accepted_at_the_rate(listening: Listening) -> None:
    accepted = listening.accept_all()
    began = listening.now
    while listening.now < began + 1:
        listening.now += listening.rate.pause_seconds
        accepted += listening.accept_all()
    assert accepted == pytest.approx(ACCEPTS_PER_SECOND + BURST, abs=BURST)


def test_after_its_pause_it_accepts_again(listening: Listening) -> None:
    listening.accept_all()
    assert 0 < listening.rate.pause_seconds < 0.05
    listening.now += listening.rate.pause_seconds
    assert listening.accept_all() >= BURST / 2 - 1


def test_a_quiet_hour_saves_up_no_more_than_a_burst(listening: Listening) -> None:
    listening.now += 3600
    assert listening.accept_all() == BURST
