"""Rates per second from two readings of counters, the earlier one from the view before.

Readings are kept only while someone looks at the page: each counter has at most two, and those of an
earlier visit are dropped at the next.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from bootbridge.runtime.sliced_work import Steps, chunks

# Views that follow faster share a reading; a rate over less is mostly noise.
APART_SECONDS_MIN = 0.2
# A rate over more than this would hide what happens now. Longer than the time between two updates of a page.
APART_SECONDS_MAX = 25.0


class _Readings:
    """The last two readings of one counter."""

    __slots__ = ("base", "based_at", "last", "read_at")

    def __init__(self, value: float, now: float) -> None:
        self.base: float | None = None
        self.based_at = now
        self.last = value
        self.read_at = now


class RateMeter:
    """Remembers readings of counters by key."""

    def __init__(self) -> None:
        self._readings: dict[Hashable, _Readings] = {}

    def read(self, totals: Mapping[Hashable, float], now: float) -> Steps[dict[Hashable, float]]:
        """Takes a reading; returns rates per second of the counters that were read before."""
        self._forget(now)
        rates: dict[Hashable, float] = {}
        for chunk in chunks(totals.items()):
            for key, value in chunk:
                rate = self._rate(key, value, now)
                if rate is not None:
                    rates[key] = rate
            yield
        return rates

    def _rate(self, key: Hashable, value: float, now: float) -> float | None:
        known = self._readings.get(key)
        if known is None or value < known.last:  # new, or another object with the same name
            self._readings[key] = _Readings(value, now)
            return None
        if now - known.read_at >= APART_SECONDS_MIN:
            known.base, known.based_at = known.last, known.read_at
            known.last, known.read_at = value, now
        return None if known.base is None else (value - known.base) / (now - known.based_at)

    def __len__(self) -> int:
        return len(self._readings)

    def _forget(self, now: float) -> None:
        oldest = now - APART_SECONDS_MAX
        stale = [key for key, readings in self._readings.items() if readings.read_at < oldest]
        for key in stale:
            del self._readings[key]
