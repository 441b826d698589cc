"""Rates from two readings, whoever looks and how often."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from bootbridge.runtime.sliced_work import run_at_once
from bootbridge.status_page.rates import APART_SECONDS_MAX, RateMeter


def read(meter: RateMeter, totals: Mapping[Hashable, float], now: float) -> dict[Hashable, float]:
    return run_at_once(meter.read(totals, now))


def test_the_first_reading_has_no_rate_and_the_second_has() -> None:
    meter = RateMeter()
    assert read(meter, {"a": 100}, 10.0) == {}
    assert read(meter, {"a": 300}, 11.0) == {"a": 200.0}
    assert read(meter, {"a": 300}, 12.0) == {"a": 0.0}


def test_two_viewers_do_not_shorten_each_others_readings() -> None:
    """A view right after another uses the same earlier reading, not the moment in between."""
    meter = RateMeter()
    read(meter, {"a": 0}, 0.0)
    read(meter, {"a": 1000}, 1.0)
    assert read(meter, {"a": 1001}, 1.001)["a"] == 1001 / 1.001
    assert read(meter, {"a": 2000}, 2.0)["a"] == 1000.0


def test_a_counter_that_starts_again_has_no_rate_at_first() -> None:
    """An agent that reconnects starts at zero: no negative rate."""
    meter = RateMeter()
    read(meter, {"a": 1000}, 0.0)
    assert read(meter, {"a": 10}, 1.0) == {}
    assert read(meter, {"a": 20}, 2.0) == {"a": 10.0}


def test_readings_of_an_earlier_visit_are_dropped() -> None:
    """Else the first rate of a visit would be an average over hours, and ended connections would stay."""
    meter = RateMeter()
    read(meter, dict.fromkeys(range(1000), 1.0), 0.0)
    assert read(meter, {1: 5.0}, 0.1 + APART_SECONDS_MAX) == {}
    assert len(meter) == 1
