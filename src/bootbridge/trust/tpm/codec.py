"""Encodes and decodes TPM integers and buffers: big-endian, a buffer after its length in two bytes."""

from __future__ import annotations

from bootbridge.errors import PeerError

SIZED_BYTES_MAX = 0xFFFF


class MalformedTpmData(PeerError):
    """Invalid TPM structure: a forged quote or a broken TPM."""


def u8(value: int) -> bytes:
    return value.to_bytes(1, "big")


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def sized(data: bytes) -> bytes:
    """Encodes a TPM2B_… buffer."""
    return u16(len(data)) + data


class Reader:
    """Parses a structure from front to back; raises MalformedTpmData that names `what`."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise self.malformed("truncated")
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
            raise self.malformed(f"buffer of {size} bytes (at most {most})")
        return self.take(size)

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        """Refuses trailing bytes, which another parser might interpret differently."""
        if self._at != len(self._data):
            raise self.malformed(f"{len(self._data) - self._at} trailing bytes")

    def malformed(self, problem: str) -> MalformedTpmData:
        return MalformedTpmData(f"malformed {self._what}: {problem}")
