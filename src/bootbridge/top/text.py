"""Formats numbers for narrow columns, and makes texts of peers harmless."""

from __future__ import annotations

from bootbridge.common.terminal.characters import escape_control_characters
from bootbridge.common.terminal.figures import size

TEXT_LENGTH_MAX = 500  # longer texts of peers are cut; no column is wider
NOTHING = "–"


def printable(value: object, length_max: int = TEXT_LENGTH_MAX) -> str:
    """Returns one line of text that cannot control a terminal, for example without escape sequences."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    text = text if len(text) <= length_max else text[: length_max - 1] + "…"
    return escape_control_characters(text)


def bytes_text(count: float | None) -> str:
    return NOTHING if count is None else size(count)


def rate_text(per_second: float | None) -> str:
    """Returns bytes per second; the column's title has the unit of time."""
    return NOTHING if per_second is None else "0" if per_second < 0.5 else bytes_text(per_second)


def count_text(count: float) -> str:
    return f"{int(count):,}"


def per_second_text(rate: float | None) -> str:
    if rate is None:
        return NOTHING
    return f"{rate:,.0f}" if rate >= 99.95 or rate == 0 else f"{rate:.1f}"


def duration_text(seconds: float | None) -> str:
    """Returns a duration for a column, without blanks: 850ms, 12s, 3m05s, 2h12m, 3d04h."""
    if seconds is None:
        return NOTHING
    if seconds < 0:
        return "0s"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def age_text(seconds: float | None) -> str:
    """Returns a duration in whole seconds."""
    return duration_text(seconds) if seconds is None or seconds >= 1 else "0s"


# Characters that a locale without Unicode cannot show, each as one ASCII character: columns stay aligned.
_TO_ASCII = str.maketrans("✓✗…–·↑↓←→▏▁▂▃▄▅▆▇█", "+x~--^v<>_.:-=+*##")


def ascii_text(text: str) -> str:
    """Returns our own texts in ASCII; other characters, of peers, as `?`."""
    return text if text.isascii() else text.translate(_TO_ASCII).encode("ascii", "replace").decode()
