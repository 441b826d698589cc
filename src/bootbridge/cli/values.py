"""Parses flag values with the syntax and the error texts of Go programs.

Each parser raises ``ValueError`` with the reason; the flag set adds the flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bootbridge.options import quote

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_FLOAT32_MAX = 3.4028235677973366e38
_DIGITS = frozenset("0123456789")
_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_SEVERITIES = ("INFO", "WARNING", "ERROR", "FATAL")


def parse_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"strconv.ParseBool: parsing {quote(text)}: invalid syntax")


def parse_int(text: str) -> int:
    """Parses a 64 bit integer; ``0x``, ``0o``, ``0b`` or a leading ``0`` set the base."""
    return _integer(text, base=0)


def parse_decimal(text: str) -> int:
    """Parses a 32 bit integer in base ten, as klog does for levels."""
    value = _integer(text, base=10)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: value out of range")
    return value


def _integer(text: str, base: int) -> int:
    try:
        value = int(_with_octal_prefix(text) if base == 0 else _without_underscores(text), base)
    except ValueError:
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: invalid syntax") from None
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: value out of range")
    return value


def _without_underscores(text: str) -> str:
    if "_" in text or text != text.strip() or not text.isascii():
        raise ValueError(text)
    return text


def _with_octal_prefix(text: str) -> str:
    """Go reads 010 as eight, which Python rejects; Python strips spaces, which Go rejects."""
    if text != text.strip() or not text.isascii():
        raise ValueError(text)
    sign, digits = (text[:1], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if len(digits) > 1 and digits[0] == "0" and (digits[1] in _DIGITS or digits[1] == "_"):
        return f"{sign}0o{digits[1:]}"
    return text


def parse_size(text: str) -> int:
    """Parses an unsigned integer, with the error texts of Go's package flag."""
    try:
        value = int(_with_octal_prefix(text), 0)
    except ValueError:
        raise ValueError("parse error") from None
    if text[:1] in ("+", "-"):
        raise ValueError("parse error")
    if value >= 1 << 64:
        raise ValueError("value out of range")
    return value


def parse_float(text: str) -> float:
    """Parses a 32 bit floating point number."""
    try:
        if text != text.strip() or not text.isascii():
            raise ValueError(text)
        value = float(text)
    except ValueError:
        raise ValueError(f"strconv.ParseFloat: parsing {quote(text)}: invalid syntax") from None
    if _FLOAT32_MAX <= abs(value) < float("inf"):
        raise ValueError(f"strconv.ParseFloat: parsing {quote(text)}: value out of range")
    return value


def parse_duration(text: str) -> float:
    """Parses a Go duration such as ``1h30m``, ``500ms`` or ``-1.5s`` to seconds."""
    return parse_nanoseconds(text) / 1_000_000_000


def parse_nanoseconds(text: str) -> int:
    """Parses a Go duration to nanoseconds, exactly."""
    negative = text[:1] == "-"
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    if not rest:
        raise ValueError(f"time: invalid duration {quote(text)}")
    total = 0
    while rest:
        amount, rest = _one_amount(rest, text)
        total += amount
    if total > _INT64_MAX + negative:
        raise ValueError(f"time: invalid duration {quote(text)}")
    return -total if negative else total


def _one_amount(rest: str, whole: str) -> tuple[int, str]:
    """Returns the leading ``number unit`` in nanoseconds, and the rest."""
    number, rest = _split_after(rest, lambda c: c in _DIGITS)
    fraction = ""
    if rest[:1] == ".":
        fraction, rest = _split_after(rest[1:], lambda c: c in _DIGITS)
    if not number and not fraction:
        raise ValueError(f"time: invalid duration {quote(whole)}")
    unit, rest = _split_after(rest, lambda c: c != "." and c not in _DIGITS)
    if not unit:
        raise ValueError(f"time: missing unit in duration {quote(whole)}")
    size = _NANOSECONDS.get(unit)
    if size is None:
        raise ValueError(f"time: unknown unit {quote(unit)} in duration {quote(whole)}")
    return int(number or "0") * size + int(fraction or "0") * size // 10 ** len(fraction), rest


def _split_after(text: str, belongs: Callable[[str], bool]) -> tuple[str, str]:
    end = 0
    while end < len(text) and belongs(text[end]):
        end += 1
    return text[:end], text[end:]


def parse_list(text: str) -> tuple[str, ...]:
    """Parses comma separated values; double quotes may enclose a comma, as in CSV."""
    if not text:
        return ()
    if '"' not in text:
        return tuple(text.split(","))
    import csv

    try:
        return tuple(next(csv.reader([text], strict=True)))
    except csv.Error as error:
        raise ValueError(str(error)) from None


def parse_severity(text: str) -> int:
    """Parses klog's severity, by name or number."""
    name = text.upper()
    return _SEVERITIES.index(name) if name in _SEVERITIES else parse_decimal(text)


def parse_klog_bool(text: str) -> bool:
    try:
        return parse_bool(text)
    except ValueError:
        raise ValueError("parse error") from None


def show_list(values: Any) -> str:
    return "[" + ",".join(values) + "]"


def show_bool(value: Any) -> str:
    return "true" if value else "false"
