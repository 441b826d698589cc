"""A frame or message that arrives in pieces, joined in one buffer.

A bytearray that grows piece by piece is copied nearly every time, so this buffer doubles. It allocates
as bytes arrive, never the announced size at once: a peer cannot reserve memory by an announcement.
"""

from __future__ import annotations

from typing import Final

_FIRST_BYTES: Final = 64 * 1024
_NO_ROOM: Final = memoryview(bytearray())


class FrameBuffer:
    """Collects bytes until ``size`` reaches ``need``. ``need`` may grow meanwhile."""

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
        """Returns the complete content, and starts the next one of ``need`` bytes in a new buffer."""
        whole = self.view()
        self.need = need
        self.size = 0
        self._room = _NO_ROOM
        return whole
