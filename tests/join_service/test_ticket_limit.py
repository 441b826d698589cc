"""One machine has a few tickets whose tokens are good, and no more."""

from __future__ import annotations

import asyncio

import pytest

from bootbridge.errors import PeerError
from bootbridge.join_api.errors import RetryLater
from bootbridge.join_service.ticket_limit import TICKETS_PER_KEY_MAX, TicketLimit

TOKEN_SECONDS = 900


class Moment:
    def __init__(self) -> None:
        self.now = 1000.0
        self.limit = TicketLimit(lambda: self.now)

    def ticket(self, holder: str = "a", failing: BaseException | None = None) -> None:
        with self.limit.one_more(holder, TOKEN_SECONDS):
            if failing:
                raise failing

    def all_of(self, holder: str = "a") -> None:
        for _ in range(TICKETS_PER_KEY_MAX):
            self.ticket(holder)


@pytest.fixture
def moment() -> Moment:
    return Moment()


def test_whoever_has_them_all_is_told_when_to_come_again(moment: Moment) -> None:
    moment.all_of()
    moment.now += 100
    for refused in (moment.ticket, lambda: moment.limit.require_room("a")):
        with pytest.raises(
            RetryLater, match=r"16 tickets were given to this key .* the next can be in 800 s"
        ):
            refused()


def test_another_is_not_held_up(moment: Moment) -> None:
    moment.all_of("a")
    moment.ticket("b")


def test_a_ticket_whose_token_has_ended_does_not_count(moment: Moment) -> None:
    moment.ticket()
    moment.now += 1
    for _ in range(TICKETS_PER_KEY_MAX - 1):
        moment.ticket()
    moment.now += TOKEN_SECONDS - 1
    moment.ticket()
    with pytest.raises(RetryLater):
        moment.ticket()


def test_a_ticket_that_could_not_be_made_does_not_count(moment: Moment) -> None:
    """An API server in trouble would else lock out whoever asks while it lasts."""
    for _ in range(10 * TICKETS_PER_KEY_MAX):
        with pytest.raises(PeerError):
            moment.ticket(failing=PeerError("no"))
    moment.all_of()


def test_a_ticket_counts_although_its_caller_has_left(moment: Moment) -> None:
    for _ in range(TICKETS_PER_KEY_MAX):
        with pytest.raises(asyncio.CancelledError):
            moment.ticket(failing=asyncio.CancelledError())
    with pytest.raises(RetryLater):
        moment.ticket()


def test_those_that_are_being_made_count_already(moment: Moment) -> None:
    for _ in range(TICKETS_PER_KEY_MAX - 1):
        moment.ticket()
    with moment.limit.one_more("a", TOKEN_SECONDS), pytest.raises(RetryLater):
        moment.ticket()


def test_machines_that_do_not_come_again_are_forgotten(moment: Moment) -> None:
    for number in range(1000):
        moment.ticket(f"machine {number}")
    moment.now += TOKEN_SECONDS
    for number in range(1000):
        moment.ticket(f"another {number}")
    assert len(moment.limit._live) == 1000
