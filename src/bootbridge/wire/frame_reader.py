"""Splits the bytes of a peer into HTTP/2 frames, behind a client's connection preface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bootbridge.wire import frames as f
from bootbridge.wire.frame_buffer import FrameBuffer
from bootbridge.wire.frames import HEADER, HEADER_SIZE, Http2ConnectionError
from bootbridge.wire.http2_budgets import check_settings_size

# Our own peers need fewer headers per byte with frames above the default of 16 KiB. grpc-go never sends more.
FRAME_BYTES_MAX: Final = 1024 * 1024


class FrameReader:
    """Passes frames to ``consume``, where possible in the buffer in which they were received.

    ``consume`` returns how many bytes it has handled. It leaves a frame that it needs whole, and then
    gets it again with more bytes.
    """

    __slots__ = ("_consume", "_held", "_preface_due")

    def __init__(self, consume: Callable[[memoryview], int], *, preface: bool) -> None:
        self._consume = consume
        self._preface_due = preface
        self._held = FrameBuffer(len(f.PREFACE) if preface else HEADER_SIZE)

    @property
    def held_bytes(self) -> int:
        return self._held.size

    def receive(self, data: memoryview) -> None:
        """Raises if the preface is wrong, or a frame is too large."""
        if self._held.size or self._preface_due:
            data = self._complete_held(data)
        at = self._consume(data) if data else 0
        if at < len(data):
            rest = data[at:]
            if len(rest) >= HEADER_SIZE:
                self._held.need = _frame_size(rest)
            self._held.add(rest)

    def drop(self) -> None:
        self._held = FrameBuffer(HEADER_SIZE)

    def _complete_held(self, data: memoryview) -> memoryview:
        """Adds to the frame that is held, until it is handled; returns what is behind it."""
        held = self._held
        while data and (held.size or self._preface_due):
            missing = held.missing
            held.add(data[:missing])
            data = data[missing:]
            if self._preface_due:
                if not f.PREFACE.startswith(held.view()):
                    raise Http2ConnectionError("invalid HTTP/2 connection preface", f.PROTOCOL_ERROR)
                if not held.missing:
                    self._preface_due = False
                    held.take(HEADER_SIZE)
            elif not held.missing:
                frame = held.view()
                if self._consume(frame):
                    held.take(HEADER_SIZE)
                else:
                    held.need = _frame_size(frame)
        return data


def _frame_size(data: memoryview) -> int:
    high, low, kind, _, _ = HEADER.unpack_from(data)
    size = high << 16 | low
    if size > FRAME_BYTES_MAX:
        raise Http2ConnectionError(f"frame too large: {size} bytes", f.FRAME_SIZE_ERROR)
    if kind == f.SETTINGS:
        check_settings_size(size)
    return HEADER_SIZE + int(size)
