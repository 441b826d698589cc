"""An agent that cannot connect says why, again and again, but not at every attempt."""

from __future__ import annotations

from bootbridge.proxy_agent.connect_failures import REASONS_MAX, REPEAT_SECONDS, ConnectFailures
from tests.support.sim_script import RecordedEvents

REFUSED, TIMED_OUT = "connection refused", "timed out"


class Attempts:
    """One attempt per second, on a clock of its own."""

    def __init__(self) -> None:
        self.time = 0.0
        self.event_log = RecordedEvents()
        self.failures = ConnectFailures(self.event_log, lambda: self.time)

    def fail(self, reason: str, target: str = "proxy.example") -> None:
        self.failures.failed(target, reason)
        self.time += 1

    @property
    def logged(self) -> list[tuple[object, object]]:
        return [(line["reason"], line["attempts"]) for line in self.event_log.about("server not reached")]


def test_a_lasting_reason_is_logged_at_once_and_then_every_minute() -> None:
    """Ten minutes of attempts are ten lines, each with the number of attempts so far."""
    attempts = Attempts()
    for _ in range(600):
        attempts.fail(REFUSED)
    assert attempts.logged == [(REFUSED, 1 + 60 * minute) for minute in range(10)]


def test_another_reason_is_logged_at_once() -> None:
    attempts = Attempts()
    for reason in (REFUSED, REFUSED, TIMED_OUT, TIMED_OUT):
        attempts.fail(reason)
    assert attempts.logged == [(REFUSED, 1), (TIMED_OUT, 3)]


def test_reasons_that_alternate_are_logged_once_per_minute_each() -> None:
    attempts = Attempts()
    for attempt in range(120):
        attempts.fail((REFUSED, TIMED_OUT)[attempt % 2])
    assert len(attempts.logged) == 4


def test_a_server_that_answers_something_new_each_time_does_not_fill_the_log() -> None:
    attempts = Attempts()
    for attempt in range(int(REPEAT_SECONDS)):
        attempts.fail(f"error {attempt}")
    assert len(attempts.logged) == REASONS_MAX


def test_after_a_success_the_same_reason_is_new() -> None:
    attempts = Attempts()
    attempts.fail(REFUSED)
    attempts.failures.succeeded("proxy.example")
    assert attempts.failures.last("proxy.example") == ""
    attempts.fail(REFUSED)
    assert attempts.logged == [(REFUSED, 1), (REFUSED, 1)]


def test_targets_are_logged_separately_and_forgotten_with_their_address() -> None:
    attempts = Attempts()
    attempts.fail(REFUSED, "192.0.2.1")
    attempts.fail(REFUSED, "192.0.2.2")
    assert len(attempts.logged) == 2
    attempts.failures.forget_others(["192.0.2.2"])
    assert attempts.failures.last("192.0.2.1") == ""
    assert attempts.failures.last("192.0.2.2") == REFUSED
