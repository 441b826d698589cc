"""How long a webhook call takes, with the tunnel and without."""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bootbridge.demo.calls import Conversation, Dial

LABELS = {"app": "web"}


@dataclass(frozen=True)
class Latency:
    """The times of one kind of call, in milliseconds."""

    way: str
    connection: str
    calls: int
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, way: str, connection: str, seconds: Sequence[float]) -> Latency:
        return cls(
            way, connection, len(seconds), percentile(seconds, 50) * 1000, percentile(seconds, 99) * 1000
        )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def with_new_connections(
    dial: Dial, tls: ssl.SSLContext, calls: int, tick: Callable[[], None]
) -> list[float]:
    """Every call dials, shakes hands, asks and hangs up."""

    def call() -> None:
        with Conversation(dial(), tls) as conversation:
            conversation.review(LABELS)

    return _timed(call, calls, tick)


def with_one_connection(dial: Dial, tls: ssl.SSLContext, calls: int, tick: Callable[[], None]) -> list[float]:
    """All calls share a connection that is already open."""
    with Conversation(dial(), tls) as conversation:
        conversation.review(LABELS)
        return _timed(lambda: conversation.review(LABELS), calls, tick)


def _timed(call: Callable[[], object], calls: int, tick: Callable[[], None]) -> list[float]:
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
        tick()
    return seconds
