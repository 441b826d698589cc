"""A header block: the payloads of one HEADERS frame and its CONTINUATION frames, within a size limit."""

from __future__ import annotations

from bootbridge.wire import frames as f
from bootbridge.wire.frames import HEADER_SIZE, Http2ConnectionError


class HeaderBlock:
    """Collects one block; ``complete`` once END_HEADERS has arrived."""

    __slots__ = ("_bytes_max", "_parts", "complete", "end", "size", "stream_id")

    def __init__(self, flags: int, stream_id: int, payload: memoryview, bytes_max: int) -> None:
        self.stream_id = stream_id
        self.end = bool(flags & f.END_STREAM)
        self.complete = False
        self._bytes_max = bytes_max
        self.size = 0
        self._parts: list[bytes] = []
        self._add(flags, _without_priority(flags, stream_id, f.unpad(payload, flags)))

    def add(self, flags: int, payload: memoryview) -> None:
        """Adds a CONTINUATION frame; its header counts too, so that empty frames reach the limit."""
        self.size += HEADER_SIZE
        self._add(flags, payload)

    def _add(self, flags: int, payload: memoryview) -> None:
        self.size += len(payload)
        if self.size > self._bytes_max:
            raise Http2ConnectionError("header block is too large", f.ENHANCE_YOUR_CALM)
        self._parts.append(bytes(payload))
        self.complete = bool(flags & f.END_HEADERS)

    def content(self) -> bytes:
        return b"".join(self._parts)


def _without_priority(flags: int, stream_id: int, body: memoryview) -> memoryview:
    if not flags & f.PRIORITISED:
        return body
    if len(body) < 5:
        raise Http2ConnectionError("HEADERS too short for its priority", f.FRAME_SIZE_ERROR)
    if f.UINT32.unpack_from(body)[0] & 0x7FFFFFFF == stream_id:
        # Not only a stream error: the HPACK state would miss its block.
        raise Http2ConnectionError(f"stream {stream_id} depends on itself", f.PROTOCOL_ERROR)
    return body[5:]
