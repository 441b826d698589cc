"""Numbers as people read them."""

from __future__ import annotations

import pytest

from bootbridge.status_page import units


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (12_345, "12.1 KiB"),
        (1_234_567, "1.18 MiB"),
        (10**12, "931 GiB"),
        (2**70, "1048576 PiB"),
    ],
)
def test_amounts_have_three_digits(count: int, shown: str) -> None:
    assert units.amount(count) == shown


@pytest.mark.parametrize(
    ("rate", "shown"), [(None, "–"), (0.0, "idle"), (0.4, "idle"), (2048.0, "2.00 KiB/s")]
)
def test_rates(rate: float | None, shown: str) -> None:
    assert units.rate(rate) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.0008, "0.8 ms"),
        (0.012, "12 ms"),
        (4.2, "4.2 s"),
        (7, "7 s"),
        (59.9, "59 s"),
        (200, "3m 20s"),
        (7500, "2h 5m"),
        (273_600, "3d 4h"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    assert units.duration(seconds) == shown


def test_times() -> None:
    """Shown in UTC; what is not a time is shown as it is."""
    assert units.clock("2026-11-18T03:00:12.123Z") == "03:00:12"
    assert units.clock("2026-11-18T05:00:12+02:00") == "03:00:12"
    assert units.date("2026-11-18T05:00:12+02:00") == "2026-11-18 03:00:12 UTC"
    assert units.clock("yesterday") == "yesterday"
    assert units.seconds_between("2026-11-18T03:00:00Z", "2026-11-18T03:00:01.500Z") == 1.5
    assert units.seconds_between("", "2026-11-18T03:00:01Z") is None


def test_counts() -> None:
    assert units.counted(1, "dial") == "1 dial"
    assert units.counted(10_000, "dial") == "10,000 dials"
