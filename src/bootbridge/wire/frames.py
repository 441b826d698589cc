"""HTTP/2 frames: the nine-byte header and the numbers of RFC 9113."""

from __future__ import annotations

from struct import Struct
from typing import Final

from bootbridge.errors import PeerError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Frame types.
DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

# Flags.
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

# Error codes.
NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

ERROR_NAMES: Final = {
    0x0: "NO_ERROR",
    0x1: "PROTOCOL_ERROR",
    0x2: "INTERNAL_ERROR",
    0x3: "FLOW_CONTROL_ERROR",
    0x4: "SETTINGS_TIMEOUT",
    0x5: "STREAM_CLOSED",
    0x6: "FRAME_SIZE_ERROR",
    0x7: "REFUSED_STREAM",
    0x8: "CANCEL",
    0x9: "COMPRESSION_ERROR",
    0xA: "CONNECT_ERROR",
    0xB: "ENHANCE_YOUR_CALM",
    0xC: "INADEQUATE_SECURITY",
    0xD: "HTTP_1_1_REQUIRED",
}

# Settings.
HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

DEFAULT_WINDOW: Final = 65535
DEFAULT_FRAME_MAX: Final = 16384
WINDOW_LIMIT: Final = 2**31 - 1
FRAME_LIMIT: Final = 2**24 - 1

HEADER_SIZE: Final = 9
HEADER: Final = Struct(">BHBBL")  # length (8 + 16 bits), type, flags, stream id
SETTING: Final = Struct(">HL")
UINT32: Final = Struct(">L")
GOAWAY_HEAD: Final = Struct(">LL")


class Http2ConnectionError(PeerError):
    """A connection error of RFC 9113: sends GOAWAY with ``code`` and closes the connection."""


class StreamError(PeerError):
    """A stream error of RFC 9113: sends RST_STREAM with ``code``; the connection continues."""

    def __init__(self, stream_id: int, message: str, code: int) -> None:
        super().__init__(message, code)
        self.stream_id = stream_id


_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_ON_STREAM_0: Final = frozenset({SETTINGS, PING, GOAWAY})
_ON_A_STREAM: Final = frozenset({HEADERS, PRIORITY})
_NAMES: Final = {
    HEADERS: "HEADERS",
    PRIORITY: "PRIORITY",
    RST_STREAM: "RST_STREAM",
    SETTINGS: "SETTINGS",
    PING: "PING",
    GOAWAY: "GOAWAY",
    WINDOW_UPDATE: "WINDOW_UPDATE",
}


def check_shape(kind: int, flags: int, stream_id: int, size: int) -> None:
    """Raises if a frame of this type must not be on this stream, or must not have this size."""
    if stream_id and kind in _ON_STREAM_0:
        raise Http2ConnectionError(f"{_NAMES[kind]} on a stream", PROTOCOL_ERROR)
    if not stream_id and kind in _ON_A_STREAM:
        raise Http2ConnectionError(f"{_NAMES[kind]} on stream 0", PROTOCOL_ERROR)
    expected = _SIZES.get(kind, size)
    if size != expected:
        text = f"{_NAMES[kind]} must have {expected} bytes"
        if kind == PRIORITY:
            raise StreamError(stream_id, text, FRAME_SIZE_ERROR)
        raise Http2ConnectionError(text, FRAME_SIZE_ERROR)
    if kind == SETTINGS and size % SETTING.size:
        raise Http2ConnectionError("SETTINGS of invalid size", FRAME_SIZE_ERROR)
    if kind == SETTINGS and size and flags & ACK:
        raise Http2ConnectionError("SETTINGS ACK with content", FRAME_SIZE_ERROR)
    if kind == GOAWAY and size < GOAWAY_HEAD.size:
        raise Http2ConnectionError("GOAWAY is too short", FRAME_SIZE_ERROR)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(key, value) for key, value in values.items()))


def parse_settings(payload: memoryview) -> list[tuple[int, int]]:
    """Returns (identifier, value) pairs, checked against the ranges of RFC 9113, section 6.5.2."""
    pairs: list[tuple[int, int]] = list(SETTING.iter_unpack(payload))
    for key, value in pairs:
        if key == ENABLE_PUSH and value > 1:
            raise Http2ConnectionError(f"ENABLE_PUSH is {value}, not 0 or 1", PROTOCOL_ERROR)
        if key == INITIAL_WINDOW_SIZE and value > WINDOW_LIMIT:
            raise Http2ConnectionError(f"INITIAL_WINDOW_SIZE {value} is above 2^31-1", FLOW_CONTROL_ERROR)
        if key == MAX_FRAME_SIZE and not DEFAULT_FRAME_MAX <= value <= FRAME_LIMIT:
            raise Http2ConnectionError(f"MAX_FRAME_SIZE {value} is out of range", PROTOCOL_ERROR)
    return pairs


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, UINT32.pack(increment))


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, UINT32.pack(code))


def goaway(last_stream_id: int, code: int, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, GOAWAY_HEAD.pack(last_stream_id, code) + text.encode()[:200])


def unpad(payload: memoryview, flags: int) -> memoryview:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2ConnectionError("padding is longer than the frame", PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]
