"""Parses the durations of flags, with an error for the operator."""

from __future__ import annotations

from bootbridge.cli.values import parse_duration
from bootbridge.errors import OperatorError


def parse_seconds(text: str, flag: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        hint = "write it like 90s or 5m"
        raise OperatorError(f"invalid duration {text!r}", subject=flag, hint=hint) from None
