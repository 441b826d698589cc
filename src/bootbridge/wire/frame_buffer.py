"""Something that arrives in pieces, put together in one buffer.

A bytearray that grows by what is added is moved nearly every time. This one doubles; and what a peer
announces to send is not set aside before it comes, so an announcement alone costs next to nothing.
"""

from __future__ import annotations

from typing import Final

_FIRST_BYTES: Final = 64 * 1024
_NO_ROOM: Final = memoryview(bytearray())


class FrameBuffer:
    """``need`` bytes, once ``size`` has come up to it. ``need`` may be raised in between."""

    __slots__ = ("_room", "need", "size")

    def __init__(self, need: int) -> None:
        self.need = need
        self.size = 0
        self._room = _NO_ROOM

    @property
    def missing(self) -> int:
        return self.need - self.size

    def add(self, piece: memoryview) -> None:
        size = self.size + len(piece)
        if size > len(self._room):
            self._grow(size)
        self._room[self.size : size] = piece
        self.size = size

    def _grow(self, size: int) -> None:
        room = memoryview(bytearray(max(size, min(self.need, max(2 * size, _FIRST_BYTES)))))
        room[: self.size] = self._room[: self.size]
        self._room = room

    def view(self) -> memoryview:
        return self._room[: self.size]

    def take(self, need: int) -> memoryview:
        """The whole; the next, of ``need`` bytes, gets a buffer of its own."""
        whole = self.view()
        self.need = need
        self.size = 0
        self._room = _NO_ROOM
        return whole
