"""Which connections to close when one listener has too many that are not admitted yet, without I/O.

A source (an IPv4 address or an IPv6 /64) has at most its share. When all are too many, the source with the
most loses its oldest one. A connection that is younger than the grace period keeps its place against
newer ones of its own source: otherwise a burst of reconnecting agents would evict those that are about to
be admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

ConnectionT = TypeVar("ConnectionT")

# Much longer than a TLS handshake and a Connect call take, on a busy server too.
GRACE_SECONDS: Final = 2.0


class ConnectionLimits(Generic[ConnectionT]):
    """The connections of one listener that are not admitted, by source, the oldest first."""

    def __init__(
        self, total: int, per_source: int, now: Callable[[], float], *, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self.total = total
        self._per_source = per_source
        self._now = now
        self._grace = grace_seconds
        self._size = 0
        self._sources: dict[str, dict[ConnectionT, float]] = {}

    def __len__(self) -> int:
        return self._size

    def add(self, source: str, connection: ConnectionT) -> ConnectionT | None:
        """Adds a connection; returns the one that the caller must close for it, which may be the new one.
        The returned one is no longer counted."""
        own = self._sources.setdefault(source, {})
        own[connection] = self._now()
        self._size += 1
        if len(own) > self._per_source:
            return self._evict(source)
        if self._size > self.total:
            return self._evict(self._largest())
        return None

    def count(self, source: str) -> int:
        return len(self._sources.get(source, ()))

    def largest(self) -> tuple[str, int]:
        """Returns the source with the most connections, and their number."""
        if not self._sources:
            return "", 0
        source = self._largest()
        return source, len(self._sources[source])

    def take_newest(self, source: str) -> ConnectionT:
        """Removes and returns the newest connection of a source that has one."""
        newest = next(reversed(self._sources[source]))
        self.remove(source, newest)
        return newest

    def remove(self, source: str, connection: ConnectionT) -> None:
        """The connection was admitted or is closed; without effect if it is not counted."""
        own = self._sources.get(source)
        if own is not None and own.pop(connection, None) is not None:
            self._size -= 1
            if not own:
                del self._sources[source]

    def oldest(self) -> ConnectionT | None:
        """Removes and returns the oldest connection of the source with the most; None without any."""
        return self._pop(self._largest()) if self._size else None

    def _largest(self) -> str:
        return max(self._sources, key=lambda source: len(self._sources[source]))

    def _evict(self, source: str) -> ConnectionT:
        """Removes the oldest connection of a source or, within the grace period, its newest."""
        own = self._sources[source]
        if self._now() - next(iter(own.values())) >= self._grace:
            return self._pop(source)
        return self.take_newest(source)

    def _pop(self, source: str) -> ConnectionT:
        connection = next(iter(self._sources[source]))
        self.remove(source, connection)
        return connection
