"""How fast a listener accepts connections, without I/O.

An attacker replaces each connection that the server closes: without a bound, accepting and closing would
take all time of the only thread. Connections above the rate wait in the kernel's queue, in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# Several times as many as this thread has TLS handshakes per second.
ACCEPTS_PER_SECOND: Final = 2_000.0
# Without a pause before; each takes 30 to 60 µs, and other connections wait meanwhile.
BURST: Final = 32.0


class AcceptRate:
    """A token bucket."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._left = BURST
        self._filled_at = now()

    def permits(self) -> bool:
        """Whether a connection may be accepted now."""
        now = self._now()
        self._left = min(BURST, self._left + (now - self._filled_at) * ACCEPTS_PER_SECOND)
        self._filled_at = now
        return self._left >= 1.0

    def count(self) -> None:
        """A connection was accepted."""
        self._left -= 1.0

    @property
    def pause_seconds(self) -> float:
        """How long to stop accepting after a refusal: until half of a burst is permitted again."""
        return (BURST / 2 - self._left) / ACCEPTS_PER_SECOND
