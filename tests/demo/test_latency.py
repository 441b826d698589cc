"""Percentiles are values that were measured."""

from __future__ import annotations

import pytest

from bootbridge.demo.latency import Latency, percentile


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, 1), (1, 1), (50, 50), (99, 99), (100, 100)],
)
def test_percentile_of_one_to_a_hundred(percent: int, expected: int) -> None:
    """The nearest rank, whatever the order."""
    assert percentile(list(range(100, 0, -1)), percent) == expected


def test_a_latency_is_told_in_milliseconds() -> None:
    """Seconds in, milliseconds out."""
    latency = Latency.of("through the tunnel", "new connection", [0.001, 0.002, 0.009])
    assert (latency.calls, latency.p50_ms, latency.p99_ms) == (3, 2.0, 9.0)
