"""Percentiles are measured values, not interpolated ones."""

from __future__ import annotations

import pytest

from bootbridge.demo.latency import Latency, percentile


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (1, 1), (50, 50), (99, 99), (100, 100)])
def test_percentile_is_the_nearest_rank(percent: int, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == expected


def test_latency_is_reported_in_milliseconds() -> None:
    latency = Latency.of("through the tunnel", "new connection", [0.001, 0.002, 0.009])
    assert (latency.calls, latency.p50_ms, latency.p99_ms) == (3, 2.0, 9.0)
