"""The limit of valid tickets per key."""

from __future__ import annotations

import asyncio

import pytest

from bootbridge.errors import PeerError
from bootbridge.join_api.errors import RetryLater
from bootbridge.join_service.ticket_limit import TICKETS_PER_KEY_MAX, TicketLimit

TOKEN_SECONDS = 900


class LimitWithClock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.limit = TicketLimit(lambda: self.now)

    def ticket(self, identity: str = "a", failing: BaseException | None = None) -> None:
        with self.limit.reserve(identity, TOKEN_SECONDS):
            if failing:
                raise failing

    def use_up(self, identity: str = "a") -> None:
        for _ in range(TICKETS_PER_KEY_MAX):
            self.ticket(identity)


@pytest.fixture
def limited() -> LimitWithClock:
    return LimitWithClock()


def test_a_key_at_its_limit_is_refused_with_the_waiting_time(limited: LimitWithClock) -> None:
    limited.use_up()
    limited.now += 100
    for refused in (limited.ticket, lambda: limited.limit.check("a")):
        with pytest.raises(RetryLater, match=r"16 valid tickets for this key; the next is possible in 800 s"):
            refused()


def test_other_keys_are_not_affected(limited: LimitWithClock) -> None:
    limited.use_up("a")
    limited.ticket("b")


def test_a_ticket_with_an_expired_token_does_not_count(limited: LimitWithClock) -> None:
    limited.ticket()
    limited.now += 1
    for _ in range(TICKETS_PER_KEY_MAX - 1):
        limited.ticket()
    limited.now += TOKEN_SECONDS - 1
    limited.ticket()
    with pytest.raises(RetryLater):
        limited.ticket()


def test_a_failed_ticket_does_not_count(limited: LimitWithClock) -> None:
    """Else an outage of the API server would lock out the instances that retry during it."""
    for _ in range(10 * TICKETS_PER_KEY_MAX):
        with pytest.raises(PeerError):
            limited.ticket(failing=PeerError("no"))
    limited.use_up()


def test_a_ticket_counts_although_its_caller_disconnected(limited: LimitWithClock) -> None:
    for _ in range(TICKETS_PER_KEY_MAX):
        with pytest.raises(asyncio.CancelledError):
            limited.ticket(failing=asyncio.CancelledError())
    with pytest.raises(RetryLater):
        limited.ticket()


def test_tickets_in_progress_count(limited: LimitWithClock) -> None:
    for _ in range(TICKETS_PER_KEY_MAX - 1):
        limited.ticket()
    with limited.limit.reserve("a", TOKEN_SECONDS), pytest.raises(RetryLater):
        limited.ticket()


def test_expired_entries_are_removed(limited: LimitWithClock) -> None:
    for number in range(1000):
        limited.ticket(f"machine {number}")
    limited.now += TOKEN_SECONDS
    for number in range(1000):
        limited.ticket(f"another {number}")
    assert len(limited.limit._expiries) == 1000
