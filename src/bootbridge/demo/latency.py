"""Measures how long a webhook call takes, through the tunnel and directly."""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bootbridge.demo.calls import Dial, WebhookConnection

LABELS = {"app": "web"}


@dataclass(frozen=True)
class Latency:
    """Percentiles of one kind of call."""

    path: str
    connection: str
    calls: int
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, path: str, connection: str, seconds: Sequence[float]) -> Latency:
        p50, p99 = (percentile(seconds, percent) * 1000 for percent in (50, 99))
        return cls(path, connection, len(seconds), p50, p99)


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the smallest value that is at least as large as `percent` of all values (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def with_new_connections(
    dial: Dial, tls: ssl.SSLContext, calls: int, tick: Callable[[], None]
) -> list[float]:
    """Times calls that each dial, handshake, send one review and close."""

    def call() -> None:
        with WebhookConnection(dial(), tls) as connection:
            connection.review(LABELS)

    return _timed(call, calls, tick)


def with_one_connection(dial: Dial, tls: ssl.SSLContext, calls: int, tick: Callable[[], None]) -> list[float]:
    """Times calls that share one open connection."""
    with WebhookConnection(dial(), tls) as connection:
        connection.review(LABELS)
        return _timed(lambda: connection.review(LABELS), calls, tick)


def _timed(call: Callable[[], object], calls: int, tick: Callable[[], None]) -> list[float]:
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
        tick()
    return seconds
