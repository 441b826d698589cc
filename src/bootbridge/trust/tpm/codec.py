"""How a TPM writes numbers and buffers: big-endian, a buffer with its length in two bytes before it."""

from __future__ import annotations

from bootbridge.errors import PeerError

SIZED_BYTES_MAX = 0xFFFF


class MalformedTpmData(PeerError):
    """The bytes are not what a TPM writes; may be a forged quote as well as a broken chip."""


def u8(value: int) -> bytes:
    return value.to_bytes(1, "big")


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def sized(data: bytes) -> bytes:
    """A TPM2B_…: the buffer behind its length."""
    return u16(len(data)) + data


class Reader:
    """Takes a structure apart from front to back; whatever does not fit is an error that names `what`."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise self.wrong("ends too early")
        self._at += size
        return taken

    def u8(self) -> int:
        return int.from_bytes(self.take(1), "big")

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def sized(self, most: int = SIZED_BYTES_MAX) -> bytes:
        size = self.u16()
        if size > most:
            raise self.wrong(f"has a buffer of {size} bytes where {most} are the most")
        return self.take(size)

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        """Nothing may follow: two readers that disagree on where something ends can be played off."""
        if self._at != len(self._data):
            raise self.wrong(f"has {len(self._data) - self._at} bytes too many")

    def wrong(self, how: str) -> MalformedTpmData:
        return MalformedTpmData(f"the {self._what} {how}")
