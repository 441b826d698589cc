"""Negotiates our protocol extension (credit, half-close and reset) in gRPC metadata.

The agent sends ``bootbridge-ext: credit=524288,half-close,reset`` with Connect, and the server replies with
what it accepts. The number is how many bytes of one connection the sender of the header can receive
before it grants more. Go peers ignore the key; unknown names are ignored. Without an agreement the
protocol is Konnectivity's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bootbridge.bounds import BOUNDS

KEY: Final = "bootbridge-ext"

_CREDIT_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Extension:
    """``credit``: bytes per connection that the peer accepts before it grants more; 0: no agreement."""

    credit: int = 0
    half_close: bool = False
    reset: bool = False

    def __bool__(self) -> bool:
        return bool(self.credit)


NONE: Final = Extension()


def offer() -> str:
    return f"credit={BOUNDS.credit},half-close,reset"


def parse(values: list[str]) -> Extension:
    """Parses what the peer offers or accepts. Half-close and reset require credit."""
    names = dict(item.strip().partition("=")[::2] for value in values for item in value.split(","))
    raw = names.get("credit", "")
    if not (raw.isascii() and raw.isdigit()) or not 0 < len(raw) < 12:
        return NONE
    credit = min(int(raw), _CREDIT_BYTES_MAX)
    return Extension(credit, "half-close" in names, "reset" in names) if credit else NONE
