"""Durations and sizes as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Returns `0.3 s`, `42 s`, `3 min 5 s`, `2 h 10 min` or `3 d 4 h`."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    for unit, size, smaller, smaller_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def size(count: float) -> str:
    """Returns bytes as `512 B`, `1.4 KiB`, `20 MiB` or `3.1 GiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1000 or unit == "TiB":
            break
    return f"{count:.1f} {unit}" if count < 10 else f"{count:.0f} {unit}"


def counted(number: int, singular: str, plural: str = "") -> str:
    """Returns `1 file`, `3 files` or `1,200 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
