"""Who is served next, without I/O: places are few, and go round among the sources that ask for them.

One source has at most its share of the places, however many connections it opens: whoever comes from
elsewhere finds one. Its further connections wait, so that a crowd behind one address is served in turn, too.
When too many wait, the largest crowd gives way.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

Guest = TypeVar("Guest")


@dataclass(frozen=True)
class Places:
    """How many there are, of each kind."""

    # Connections that are about to show what they are. For each of them our own TPM makes a quote, one after
    # the other: with more at once, all would be late.
    handshakes: int = 64
    # Connections in all, those that are in use and the above.
    channels: int = 256
    # Connections that wait; each costs a file descriptor.
    waiting: int = 2048
    # What one source can have of the first two, and at least one of each.
    share: float = 0.5

    def shared(self, places: int) -> int:
        return max(1, int(places * self.share))


class WaitingRoom(Generic[Guest]):
    def __init__(self, places: Places) -> None:
        self._places = places
        # The source whose turn is next is the first; whoever had a turn goes to the end.
        self._waiting: dict[str, deque[Guest]] = {}
        self._proving: Counter[str] = Counter()
        self._inside: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def enter(self, source: str, guest: Guest) -> Guest | None:
        """Wait for a turn; who is returned has to leave for it, the newest of the largest crowd."""
        self._waiting.setdefault(source, deque()).append(guest)
        if self.waiting <= self._places.waiting:
            return None
        largest = max(self._waiting, key=lambda each: len(self._waiting[each]))
        leaving = self._waiting[largest].pop()
        self._forget_if_empty(largest)
        return leaving

    def next(self) -> tuple[str, Guest] | None:
        """Who has a place now, and proves itself; None: nobody waits who could have one."""
        places = self._places
        if self._proving.total() >= places.handshakes or self._inside.total() >= places.channels:
            return None
        for source in self._waiting:
            if self._within_share(source):
                return source, self._admitted(source)
        return None

    def proved(self, source: str) -> None:
        """Its handshake is over, however it ended."""
        _take_one(self._proving, source)

    def left(self, source: str) -> None:
        """Its connection is over."""
        _take_one(self._inside, source)

    def emptied(self) -> list[Guest]:
        """All that waited; nobody is served any more."""
        everybody = [guest for guests in self._waiting.values() for guest in guests]
        self._waiting.clear()
        return everybody

    def _within_share(self, source: str) -> bool:
        handshakes, channels = map(self._places.shared, (self._places.handshakes, self._places.channels))
        return self._proving[source] < handshakes and self._inside[source] < channels

    def _admitted(self, source: str) -> Guest:
        guests = self._waiting.pop(source)
        guest = guests.popleft()
        if guests:
            self._waiting[source] = guests
        self._proving[source] += 1
        self._inside[source] += 1
        return guest

    def _forget_if_empty(self, source: str) -> None:
        if not self._waiting[source]:
            del self._waiting[source]


def _take_one(counted: Counter[str], source: str) -> None:
    counted[source] -= 1
    if not counted[source]:
        del counted[source]


def source_of(address: str) -> str:
    """Whom an address is taken for: one machine may have all of an IPv6 network of 64 bits."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or IPv6Address(int(parsed) >> 64 << 64))
