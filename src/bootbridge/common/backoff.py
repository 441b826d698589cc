"""How long to wait before the next attempt: exponential backoff with full jitter.

The wait starts when an attempt has ended, so that a slow attempt is not repeated at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

# Prevents an overflow; every maximum is reached earlier.
DOUBLINGS_MAX: Final = 16


@dataclass
class Backoff:
    """Returns random seconds between `least` and a ceiling that doubles from `first` to `most`."""

    random: Random
    least: float = 0.5
    first: float = 2.0
    most: float = 30.0
    _doublings: int = field(default=0, init=False)

    def seconds(self) -> float:
        ceiling = min(self.most, self.first * 2**self._doublings)
        self._doublings = min(self._doublings + 1, DOUBLINGS_MAX)
        return self.random.uniform(min(self.least, ceiling), ceiling)

    def reset(self) -> None:
        self._doublings = 0


def at_leisure(random: Random) -> Backoff:
    """Returns a slow backoff, for a peer that refused: an operator must act first."""
    return Backoff(random, least=15.0, first=45.0, most=300.0)
