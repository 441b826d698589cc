"""Compares two samples: bytes, dials and counts per second."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from bootbridge.top.snapshot import ConnectionRow, Row, RowRates, Snapshot
from bootbridge.top.stalls import with_stalls

HISTORY_MAX = 120  # samples in the graph of traffic
# Shorter intervals make rates of a few bytes look like bursts.
SECONDS_MIN = 0.05
_SAMPLES_MAX = 20  # keys pressed within one interval


@dataclass(frozen=True)
class Rates:
    """What changed between two samples of one program."""

    seconds: float = 0.0
    up: float | None = None
    down: float | None = None
    dials: float | None = None
    failures: float | None = None


NO_RATES = RowRates()


class History:
    """Holds the samples that rates are computed from, and the traffic of the samples before them.

    A key can cause a sample at once. It is compared with one that is at least `seconds_min` older, so that
    rates do not jump.
    """

    def __init__(self, seconds_min: float = SECONDS_MIN) -> None:
        self.current: Snapshot | None = None
        self.rates = Rates()
        self.traffic: deque[float] = deque(maxlen=HISTORY_MAX)
        self._seconds_min = max(seconds_min, SECONDS_MIN)
        self._before: deque[Snapshot] = deque(maxlen=_SAMPLES_MAX)
        self._rows: dict[tuple[str, ...], RowRates] = {}

    def add(self, sample: Snapshot) -> None:
        if self.current is not None:
            if _is_restarted(self.current, sample):
                self._before.clear()
                self.rates, self._rows = Rates(), {}
            else:
                self._before.append(self.current)
        self._compare(sample)
        self.current = with_stalls(sample, self.of)

    def _compare(self, sample: Snapshot) -> None:
        old_enough = [each for each in self._before if sample.taken - each.taken >= self._seconds_min]
        if not old_enough:
            return
        before = old_enough[-1]
        seconds = sample.taken - before.taken
        self.rates = _totals(before, sample, seconds)
        if before is self._before[-1]:
            self.traffic.append((self.rates.up or 0.0) + (self.rates.down or 0.0))
        self._rows = {}
        for name in ("peers", "connections", "counters"):
            self._rows |= _row_rates(getattr(before, name), getattr(sample, name), seconds)

    def of(self, row: Row) -> RowRates:
        return self._rows.get((type(row).__name__, *row.key), NO_RATES)


def _is_restarted(before: Snapshot, sample: Snapshot) -> bool:
    """Whether it counts from zero again, or is another program."""
    if before.program != sample.program or before.has_details != sample.has_details:
        return True
    if before.identity != sample.identity:
        return True
    return (sample.uptime_seconds or 0.0) + 1.0 < (before.uptime_seconds or 0.0)


def _totals(before: Snapshot, sample: Snapshot, seconds: float) -> Rates:
    failures = _rate(before.dials_failed_total, sample.dials_failed_total, seconds)
    successes = _rate(before.dials_succeeded, sample.dials_succeeded, seconds)
    return Rates(
        seconds,
        _rate(before.bytes_up, sample.bytes_up, seconds),
        _rate(before.bytes_down, sample.bytes_down, seconds),
        None if failures is None or successes is None else failures + successes,
        failures,
    )


def _row_rates(before: Iterable[Row], now: Iterable[Row], seconds: float) -> dict[tuple[str, ...], RowRates]:
    old = {row.key: row for row in before}
    found = {}
    for row in now:
        known = old.get(row.key)
        if known is None and isinstance(row, ConnectionRow) and (row.age_seconds or seconds) < seconds:
            known = ConnectionRow(row.id)  # opened since then, so it had transferred nothing
        if known is not None:
            rates = (_field_rate(known, row, fields, seconds) for fields in _FIELDS)
            found[type(row).__name__, *row.key] = RowRates(*rates)
    return found


_FIELDS = (("bytes_up",), ("bytes_down",), ("dials_succeeded", "dials_failed"), ("value",))


def _field_rate(before: Row, now: Row, fields: tuple[str, ...], seconds: float) -> float | None:
    if not hasattr(now, fields[0]):
        return None
    old, new = (sum(getattr(row, field) for field in fields) for row in (before, now))
    return _rate(old, new, seconds)


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    if before is None or now is None or now < before:
        return None
    return (now - before) / seconds
