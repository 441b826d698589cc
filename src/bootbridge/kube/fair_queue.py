"""A bounded queue in which every source has the same share, however many items it adds."""

from __future__ import annotations

from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class FairQueue(Generic[ItemT]):
    """Takes one item of each source in turn, the oldest first.

    When it is full, the source with the most items loses its newest one; in a tie, the new item loses.
    """

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._sources: dict[str, dict[ItemT, None]] = {}  # the source whose turn it is first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, source: str, item: ItemT) -> ItemT | None:
        """Returns the item that has lost its place, which may be the new one."""
        self._sources.setdefault(source, {})[item] = None
        self._count += 1
        if self._count <= self._items_max:
            return None
        largest = max(self._sources, key=lambda each: (len(self._sources[each]), each == source))
        newest = next(reversed(self._sources[largest]))
        self.remove(largest, newest)
        return newest

    def remove(self, source: str, item: ItemT) -> bool:
        """Returns whether the item was in the queue."""
        items = self._sources.get(source)
        if items is None or item not in items:
            return False
        del items[item]
        self._count -= 1
        if not items:
            del self._sources[source]
        return True

    def take(self) -> ItemT | None:
        """Removes and returns the next item; its source goes to the end."""
        if not self._sources:
            return None
        source = next(iter(self._sources))
        item = next(iter(self._sources[source]))
        self.remove(source, item)
        if source in self._sources:
            self._sources[source] = self._sources.pop(source)
        return item
