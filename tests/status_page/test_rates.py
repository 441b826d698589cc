"""Rates from two readings, whoever looks and how often."""

from __future__ import annotations

from bootbridge.status_page.rates import APART_SECONDS_MAX, RateMeter


def test_the_first_reading_has_no_rate_and_the_second_has() -> None:
    meter = RateMeter()
    assert meter.read({"a": 100}, 10.0) == {}
    assert meter.read({"a": 300}, 11.0) == {"a": 200.0}
    assert meter.read({"a": 300}, 12.0) == {"a": 0.0}


def test_two_viewers_do_not_shorten_each_others_readings() -> None:
    """A view right after another uses the same earlier reading, not the moment in between."""
    meter = RateMeter()
    meter.read({"a": 0}, 0.0)
    meter.read({"a": 1000}, 1.0)
    assert meter.read({"a": 1001}, 1.001)["a"] == 1001 / 1.001
    assert meter.read({"a": 2000}, 2.0)["a"] == 1000.0


def test_a_counter_that_starts_again_has_no_rate_at_first() -> None:
    """An agent that reconnects starts at zero: no negative rate."""
    meter = RateMeter()
    meter.read({"a": 1000}, 0.0)
    assert meter.read({"a": 10}, 1.0) == {}
    assert meter.read({"a": 20}, 2.0) == {"a": 10.0}


def test_readings_of_an_earlier_visit_are_dropped() -> None:
    """Else the first rate of a visit would be an average over hours, and ended connections would stay."""
    meter = RateMeter()
    meter.read(dict.fromkeys(range(1000), 1.0), 0.0)
    assert meter.read({1: 5.0}, 0.1 + APART_SECONDS_MAX) == {}
    assert len(meter) == 1
