"""Bytes, rates, durations and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
NONE = "–"


def amount(count: float) -> str:
    """Returns `17 B`, `1.21 KiB`, `12.1 MiB`, `121 GiB`: three digits."""
    for unit in _BYTE_UNITS:
        if count < 1000 or unit == _BYTE_UNITS[-1]:
            break
        count /= 1024
    return f"{int(count)} B" if unit == "B" else f"{_three_digits(count)} {unit}"


def rate(per_second: float | None) -> str:
    """Returns an amount per second, `idle` for none, and a dash if it is not known yet."""
    if per_second is None:
        return NONE
    return f"{amount(per_second)}/s" if per_second >= 0.5 else "idle"


def integer(value: float) -> str:
    """Returns `10,000`."""
    return f"{int(value):,}"


def counted(number: float, noun: str) -> str:
    """Returns `1 dial`, `2 dials`."""
    return f"{integer(number)} {noun}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """Returns `0 s`, `0.8 ms`, `12 ms`, `4.2 s`, `3m 20s`, `2h 5m`, `3d 4h`."""
    if not seconds:
        return "0 s"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, small_size, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // small_size}{small}"
    return f"{whole} s"


def parse_time(text: str) -> datetime | None:
    """Returns a time with its zone (UTC if it names none), or None for anything else."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def clock(text: str) -> str:
    """Returns the time of day, `03:00:12`."""
    time = parse_time(text)
    return time.astimezone(UTC).strftime("%H:%M:%S") if time else text


def date(text: str) -> str:
    """Returns `2026-11-18 03:00:12 UTC`."""
    time = parse_time(text)
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if time else text


def seconds_between(earlier: str, later: str) -> float | None:
    first, second = parse_time(earlier), parse_time(later)
    return (second - first).total_seconds() if first and second else None


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
