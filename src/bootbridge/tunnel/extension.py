"""What our own server and agent agree on beyond Konnectivity, in gRPC metadata.

The agent offers ``bootbridge-ext: credit=524288,half-close`` on Connect, the server
answers with what it accepts. The number is how many bytes of one connection its sender can
take before it has to grant more. Go peers ignore the key, unknown names are ignored, and
without an agreement everything is as upstream does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bootbridge.bounds import BOUNDS

KEY: Final = "bootbridge-ext"

_CREDIT_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Extension:
    """``credit`` bytes may be sent to the peer per connection before it grants more; 0: no limit known."""

    credit: int = 0
    half_close: bool = False

    def __bool__(self) -> bool:
        return bool(self.credit)


NONE: Final = Extension()


def offer() -> str:
    return f"credit={BOUNDS.credit},half-close"


def parse(values: list[str]) -> Extension:
    """What the peer offers or accepts. Half-close makes sense only with credit."""
    names = dict(item.strip().partition("=")[::2] for value in values for item in value.split(","))
    raw = names.get("credit", "")
    if not (raw.isascii() and raw.isdigit()) or not 0 < len(raw) < 12:
        return NONE
    credit = min(int(raw), _CREDIT_BYTES_MAX)
    return Extension(credit, "half-close" in names) if credit else NONE
