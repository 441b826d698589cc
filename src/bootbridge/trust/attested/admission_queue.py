"""Admission of connections at an attested listener, without I/O: limits, shares per source, fair turns.

A source holds at most its share of the limits, however many connections it opens; other sources are still
admitted. Its further connections wait, and sources take turns. When too many wait, the source with the most
waiting connections loses its newest one.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

ConnectionT = TypeVar("ConnectionT")


@dataclass(frozen=True)
class AdmissionLimits:
    # Connections in the handshake. Those that wait for our own TPM share its next quote, which has room for
    # as many (statement_tree.STATEMENTS_MAX).
    handshakes: int = 64
    # Open connections, including those in the handshake.
    channels: int = 256
    # Connections that wait; each costs a file descriptor.
    waiting: int = 2048
    # The part of `handshakes` and `channels` that one source may hold, at least one of each.
    share: float = 0.5

    @classmethod
    def for_descriptors(cls, descriptors: int) -> AdmissionLimits:
        """Leaves a quarter of the file descriptors to health port, API server and files."""
        channels = min(cls.channels, max(1, descriptors // 4))
        return cls(min(cls.handshakes, channels), channels, min(cls.waiting, descriptors // 2))

    def per_source(self, limit: int) -> int:
        return max(1, int(limit * self.share))


class AdmissionQueue(Generic[ConnectionT]):
    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        # In the order of turns: a source that was admitted moves to the end.
        self._waiting: dict[str, deque[ConnectionT]] = {}
        self._handshakes: Counter[str] = Counter()
        self._channels: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def enqueue(self, source: str, connection: ConnectionT) -> ConnectionT | None:
        """Adds a waiting connection; returns the one that the caller must close to make room, if any."""
        self._waiting.setdefault(source, deque()).append(connection)
        if self.waiting <= self._limits.waiting:
            return None
        largest = max(self._waiting, key=lambda each: len(self._waiting[each]))
        evicted = self._waiting[largest].pop()
        if not self._waiting[largest]:
            del self._waiting[largest]
        return evicted

    def admit_next(self) -> tuple[str, ConnectionT] | None:
        """Admits one connection to the handshake; None when none waits or no limit has room."""
        limits = self._limits
        if self._handshakes.total() >= limits.handshakes or self._channels.total() >= limits.channels:
            return None
        for source in self._waiting:
            if self._within_share(source):
                return source, self._admit(source)
        return None

    def end_handshake(self, source: str) -> None:
        """Must be called once for each admitted connection, however its handshake ended."""
        _decrement(self._handshakes, source)

    def release(self, source: str) -> None:
        """Must be called once for each admitted connection, when it is closed."""
        _decrement(self._channels, source)

    def drain(self) -> list[ConnectionT]:
        """Removes and returns all waiting connections."""
        waiting = [each for connections in self._waiting.values() for each in connections]
        self._waiting.clear()
        return waiting

    def _within_share(self, source: str) -> bool:
        handshakes, channels = map(self._limits.per_source, (self._limits.handshakes, self._limits.channels))
        return self._handshakes[source] < handshakes and self._channels[source] < channels

    def _admit(self, source: str) -> ConnectionT:
        connections = self._waiting.pop(source)
        connection = connections.popleft()
        if connections:
            self._waiting[source] = connections
        self._handshakes[source] += 1
        self._channels[source] += 1
        return connection


def _decrement(counts: Counter[str], source: str) -> None:
    counts[source] -= 1
    if not counts[source]:
        del counts[source]
