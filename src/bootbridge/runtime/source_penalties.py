"""How long a source whose connections misbehaved waits for its next TLS handshakes, without I/O.

A handshake takes about a millisecond of the only thread. A peer whose connection was closed for a flood, or
whose handshakes fail, would connect again at once, and cost that millisecond again and again. Each fault
doubles the wait of its source (an IPv4 address or an IPv6 /64), up to DELAY_SECONDS_MAX. An admitted agent
takes back one fault: behind an address with many agents, a few failed handshakes delay none of them. A
connection is never refused for it: an agent behind the same address is late by the wait, and then served.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

# Faults that have no consequence: an agent with an old certificate, a port scan, a load balancer's check.
FREE_FAULTS: Final = 8
# One flood counts as much as this many failed handshakes, more than its own admission takes back.
FLOOD_FAULTS: Final = 10
DELAY_SECONDS_MIN: Final = 0.25
# Agents give up a handshake after 20 s.
DELAY_SECONDS_MAX: Final = 8.0
# The highest count: as many doublings as reach the longest delay.
FAULTS_MAX: Final = FREE_FAULTS + 6
# A source without a fault for this long is forgotten; longer than the longest delay.
MEMORY_SECONDS: Final = 60.0
SOURCES_MAX: Final = 1024
# Delays vary by this part, so that connections that were delayed together are not served together.
_JITTER: Final = 0.25


class SourcePenalties:
    """The faults of each source, those with the oldest last fault first."""

    def __init__(self, now: Callable[[], float], random: Random) -> None:
        self._now = now
        self._random = random
        self._faults: dict[str, tuple[int, float]] = {}  # count, time of the last one

    def __len__(self) -> int:
        return len(self._faults)

    def fault(self, source: str, weight: int = 1) -> None:
        count = min(self._count(source) + weight, FAULTS_MAX)
        self._faults.pop(source, None)
        if len(self._faults) >= SOURCES_MAX:
            del self._faults[next(iter(self._faults))]
        self._faults[source] = count, self._now()

    def admitted(self, source: str) -> None:
        """An agent of this source was admitted."""
        if source in self._faults:
            count, last = self._faults[source]
            if count <= 1:
                del self._faults[source]
            else:
                self._faults[source] = count - 1, last

    def delay(self, source: str) -> float:
        """Returns how long the next handshake of this source has to wait, in seconds."""
        excess = self._count(source) - FREE_FAULTS
        if excess <= 0:
            return 0.0
        seconds = min(DELAY_SECONDS_MIN * 2.0 ** (excess - 1), DELAY_SECONDS_MAX)
        return seconds * self._random.uniform(1 - _JITTER, 1 + _JITTER)

    def _count(self, source: str) -> int:
        if source not in self._faults:
            return 0
        count, last = self._faults[source]
        if self._now() - last >= MEMORY_SECONDS:
            del self._faults[source]
            return 0
        return count
