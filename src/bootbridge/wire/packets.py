"""Konnectivity's packets: protobuf messages inside gRPC messages.

Control packets are rare and become small objects. DATA is the hot path: ``data_head`` writes the
bytes before a payload, and ``peek_data`` finds a payload without copying it.

The protobuf schema is small and stable (docs/protocol.md), so it is coded by hand. Tests compare it
with the protobuf library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from bootbridge.errors import PeerError

Buffer = bytes | bytearray | memoryview

# Packet.type. The last three are our extension, used only between peers that agreed on it.
DIAL_REQ: Final = 0
DIAL_RSP: Final = 1
CLOSE_REQ: Final = 2
CLOSE_RSP: Final = 3
DATA: Final = 4
DIAL_CLS: Final = 5
DRAIN: Final = 6
CREDIT: Final = 20001
END: Final = 20002
RESET: Final = 20003

TYPE_NAMES: Final = {
    DIAL_REQ: "DIAL_REQ",
    DIAL_RSP: "DIAL_RSP",
    CLOSE_REQ: "CLOSE_REQ",
    CLOSE_RSP: "CLOSE_RSP",
    DATA: "DATA",
    DIAL_CLS: "DIAL_CLS",
    DRAIN: "DRAIN",
    CREDIT: "CREDIT",
    END: "END",
    RESET: "RESET",
}

# The field number of each type's payload in Packet's oneof.
_PAYLOAD_FIELD: Final = {
    DIAL_REQ: 2,
    DIAL_RSP: 3,
    DATA: 4,
    CLOSE_REQ: 5,
    CLOSE_RSP: 6,
    DIAL_CLS: 7,
    DRAIN: 8,
    CREDIT: CREDIT,
    END: END,
    RESET: RESET,
}
_PAYLOAD_TAGS: Final = frozenset(field << 3 | 2 for field in _PAYLOAD_FIELD.values())
_GROUP_DEPTH_MAX: Final = 64
_SHIFT_MAX: Final = 70  # a varint has at most ten bytes


class PacketError(PeerError):
    """Invalid protobuf Packet."""


class _Packet:
    """Base of the packets. Not dataclasses: mypyc compiles these to structs, which are faster to create."""

    __slots__ = ()

    def _values(self) -> list[object]:
        names: tuple[str, ...] = getattr(self, "__match_args__", ())
        return [getattr(self, name) for name in names]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Packet) and type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), *self._values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._values()))})"


class DialRequest(_Packet):
    __slots__ = ("address", "protocol", "random")
    __match_args__ = ("protocol", "address", "random")
    type: ClassVar[int] = DIAL_REQ

    def __init__(self, protocol: str, address: str, random: int) -> None:
        self.protocol = protocol
        self.address = address
        self.random = random


class DialResponse(_Packet):
    __slots__ = ("connect_id", "error", "random")
    __match_args__ = ("error", "connect_id", "random")
    type: ClassVar[int] = DIAL_RSP

    def __init__(self, error: str, connect_id: int, random: int) -> None:
        self.error = error
        self.connect_id = connect_id
        self.random = random


class CloseRequest(_Packet):
    __slots__ = ("connect_id",)
    __match_args__ = ("connect_id",)
    type: ClassVar[int] = CLOSE_REQ

    def __init__(self, connect_id: int) -> None:
        self.connect_id = connect_id


class CloseResponse(_Packet):
    __slots__ = ("connect_id", "error")
    __match_args__ = ("error", "connect_id")
    type: ClassVar[int] = CLOSE_RSP

    def __init__(self, error: str, connect_id: int) -> None:
        self.error = error
        self.connect_id = connect_id


class Data(_Packet):
    __slots__ = ("connect_id", "data")
    __match_args__ = ("connect_id", "data")
    type: ClassVar[int] = DATA

    def __init__(self, connect_id: int, data: bytes) -> None:
        self.connect_id = connect_id
        self.data = data

    def __repr__(self) -> str:
        return f"<Packet DATA {self.connect_id} {len(self.data)}B>"


class CloseDial(_Packet):
    __slots__ = ("random",)
    __match_args__ = ("random",)
    type: ClassVar[int] = DIAL_CLS

    def __init__(self, random: int) -> None:
        self.random = random


class Drain(_Packet):
    __slots__ = ()
    type: ClassVar[int] = DRAIN


class Credit(_Packet):
    """Extension: the receiver can take ``size`` more bytes on this connection."""

    __slots__ = ("connect_id", "size")
    __match_args__ = ("connect_id", "size")
    type: ClassVar[int] = CREDIT

    def __init__(self, connect_id: int, size: int) -> None:
        self.connect_id = connect_id
        self.size = size


class End(_Packet):
    """Extension: no more bytes follow in this direction (half-close)."""

    __slots__ = ("connect_id",)
    __match_args__ = ("connect_id",)
    type: ClassVar[int] = END

    def __init__(self, connect_id: int) -> None:
        self.connect_id = connect_id


class Reset(_Packet):
    """Extension: a CLOSE_REQ of an incomplete upload; the endpoint must see a reset."""

    __slots__ = ("connect_id",)
    __match_args__ = ("connect_id",)
    type: ClassVar[int] = RESET

    def __init__(self, connect_id: int) -> None:
        self.connect_id = connect_id


class Unknown(_Packet):
    __slots__ = ("type",)
    __match_args__ = ("type",)

    def __init__(self, type: int) -> None:
        self.type = type


Packet = (
    DialRequest
    | DialResponse
    | CloseRequest
    | CloseResponse
    | Data
    | CloseDial
    | Drain
    | Credit
    | End
    | Reset
    | Unknown
)


# --- encoding -----------------------------------------------------------------------------


def varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    if 0 < value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0:
        value += 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE: Final = [bytes([value]) for value in range(0x80)]


def _number(tag: bytes, value: int) -> bytes:
    return tag + varint(value) if value else b""


def _text(tag: bytes, value: str) -> bytes:
    return _chunk(tag, value.encode()) if value else b""


def _chunk(tag: bytes, value: bytes) -> bytes:
    return tag + varint(len(value)) + value if value else b""


def _encode_dial_request(packet: DialRequest) -> bytes:
    return _text(b"\x0a", packet.protocol) + _text(b"\x12", packet.address) + _number(b"\x18", packet.random)


def _encode_dial_response(packet: DialResponse) -> bytes:
    return (
        _text(b"\x0a", packet.error) + _number(b"\x10", packet.connect_id) + _number(b"\x18", packet.random)
    )


# The payload writers, in the order of the types. A tag is the field number times 8, plus 0 for numbers
# or 2 for bytes.
_PAYLOAD_WRITERS: Final[tuple[Callable[[Any], bytes], ...]] = (
    _encode_dial_request,
    _encode_dial_response,
    lambda packet: _number(b"\x08", packet.connect_id) + _chunk(b"\x1a", packet.data),
    lambda packet: _number(b"\x08", packet.connect_id),
    lambda packet: _text(b"\x0a", packet.error) + _number(b"\x10", packet.connect_id),
    lambda packet: _number(b"\x08", packet.random),
    lambda packet: b"",
    lambda packet: _number(b"\x08", packet.connect_id) + _number(b"\x10", packet.size),
    lambda packet: _number(b"\x08", packet.connect_id),
    lambda packet: _number(b"\x08", packet.connect_id),
)
# With the bytes before the payload: the type, unless it is 0, and the payload's tag.
_ENCODERS: Final[dict[int, tuple[bytes, Callable[[Any], bytes]]]] = {
    kind: ((b"\x08" + varint(kind) if kind else b"") + varint(field << 3 | 2), writer)
    for (kind, field), writer in zip(_PAYLOAD_FIELD.items(), _PAYLOAD_WRITERS, strict=True)
}


def encode(packet: Packet) -> bytes:
    """Returns the protobuf body, byte for byte as Go peers write it."""
    if isinstance(packet, Unknown):
        return _number(b"\x08", packet.type)
    before, encoder = _ENCODERS[packet.type]
    payload = encoder(packet)
    return before + varint(len(payload)) + payload


def data_head(connect_id: int, size: int) -> bytes:
    """Returns the bytes before a payload of ``size`` (at least 1) bytes in a DATA packet."""
    inner = b"\x08" + varint(connect_id) + b"\x1a" + varint(size)
    return b"\x08\x04\x22" + varint(len(inner) + size) + inner


# --- decoding -----------------------------------------------------------------------------


def peek_data(buffer: Buffer, start: int, end: int) -> tuple[int, int] | None:
    """Returns (connect id, start of the payload) if buffer[start:end] is a DATA packet in the form that
    every known peer writes. None: the caller has to ``decode`` it."""
    head = bytes(buffer[start : start + 24])
    if head[:3] != b"\x08\x04\x22":
        return None
    try:
        at = 3
        byte = head[at]
        outer = byte & 0x7F
        shift = 7
        while byte > 0x7F:
            at += 1
            byte = head[at]
            outer |= (byte & 0x7F) << shift
            shift += 7
        at += 1
        if head[at] != 0x08 or start + at + outer != end or shift > _SHIFT_MAX:
            return None
        at += 1
        byte = head[at]
        connect_id = byte & 0x7F
        shift = 7
        while byte > 0x7F:
            at += 1
            byte = head[at]
            connect_id |= (byte & 0x7F) << shift
            shift += 7
        at += 1
        if head[at] != 0x1A or shift > _SHIFT_MAX:
            return None
        at += 1
        byte = head[at]
        size = byte & 0x7F
        shift = 7
        while byte > 0x7F:
            at += 1
            byte = head[at]
            size |= (byte & 0x7F) << shift
            shift += 7
    except IndexError:
        return None
    at += start + 1
    if size and at + size == end and connect_id < 1 << 63 and shift <= _SHIFT_MAX:
        return connect_id, at
    return None


def decode(body: Buffer) -> Packet:
    kind = 0
    field = 0
    payload: dict[int, Any] = {}
    for tag, value in fields(bytes(body)):
        if tag == 0x08:
            kind = value
        elif tag in _PAYLOAD_TAGS:
            if tag != field:
                field, payload = tag, {}
            payload.update(fields(value))
    if not 0 <= kind < 1 << 31:
        kind = (kind & 0xFFFFFFFF ^ 0x80000000) - 0x80000000  # an enum is 32 bits wide
    if kind not in _PAYLOAD_FIELD:
        return Unknown(kind)
    if _PAYLOAD_FIELD[kind] << 3 | 2 != field:
        payload = {}
    return _BUILDERS[kind](payload.get)


# The wire type in a tag decides the type of its value.
_BUILDERS: Final[dict[int, Callable[[Callable[[int, Any], Any]], Packet]]] = {
    DIAL_REQ: lambda get: DialRequest(_str(get(0x0A, b"")), _str(get(0x12, b"")), get(0x18, 0)),
    DIAL_RSP: lambda get: DialResponse(_str(get(0x0A, b"")), get(0x10, 0), get(0x18, 0)),
    CLOSE_REQ: lambda get: CloseRequest(get(0x08, 0)),
    CLOSE_RSP: lambda get: CloseResponse(_str(get(0x0A, b"")), get(0x10, 0)),
    DATA: lambda get: Data(get(0x08, 0), get(0x1A, b"")),
    DIAL_CLS: lambda get: CloseDial(get(0x08, 0)),
    DRAIN: lambda get: Drain(),
    CREDIT: lambda get: Credit(get(0x08, 0), get(0x10, 0)),
    END: lambda get: End(get(0x08, 0)),
    RESET: lambda get: Reset(get(0x08, 0)),
}


def _str(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise PacketError("string field: invalid UTF-8") from error


def fields(body: bytes) -> list[tuple[int, Any]]:
    """Returns (tag, value) of every field of one message in order, without fixed-size fields and groups.

    A tag is the field's number and wire type, so a field of the wrong type is an unknown one.
    """
    found: list[tuple[int, Any]] = []
    at = 0
    size = len(body)
    while at < size:
        tag = body[at]
        if 8 <= tag < 0x80:  # one byte, as nearly every tag is
            at += 1
        else:
            tag, at = _tag_at(body, at)
        wire_type = tag & 7
        if wire_type == 0:
            value, at = _varint_at(body, at)
            found.append((tag, value))
        elif wire_type == 2:
            start, at = _chunk_at(body, at)
            found.append((tag, body[start:at]))
        else:
            at = _skip(body, at, tag, 0)
    return found


def _tag_at(body: bytes, at: int) -> tuple[int, int]:
    tag, at = _varint_at(body, at)
    if not 8 <= tag < 1 << 32:
        raise PacketError(f"invalid field number {tag >> 3}")
    return tag, at


def _varint_at(body: bytes, at: int) -> tuple[int, int]:
    """Returns (value as a signed 64-bit number, position behind it)."""
    head = body[at : at + 2]
    if head and head[0] < 0x80:
        return head[0], at + 1
    if len(head) == 2 and head[1] < 0x80:
        return head[0] & 0x7F | head[1] << 7, at + 2
    result = 0
    for index in range(10):
        if at + index >= len(body):
            raise PacketError("truncated varint")
        byte = body[at + index]
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if index == 9 and byte > 1:
                break
            return (result - (1 << 64) if result >> 63 else result), at + index + 1
    raise PacketError("varint is longer than 64 bits")


def _chunk_at(body: bytes, at: int) -> tuple[int, int]:
    """Returns (start, end) of a field's bytes."""
    size, at = _varint_at(body, at)
    if size < 0 or at + size > len(body):
        raise PacketError("truncated field")
    return at, at + size


def _skip(body: bytes, at: int, tag: int, depth: int) -> int:
    wire_type = tag & 7
    if wire_type == 0:
        return _varint_at(body, at)[1]
    if wire_type == 2:
        return _chunk_at(body, at)[1]
    if wire_type in (1, 5):
        at += 8 if wire_type == 1 else 4
        if at > len(body):
            raise PacketError("truncated field")
        return at
    if wire_type != 3 or depth > _GROUP_DEPTH_MAX:
        raise PacketError(f"invalid wire type {wire_type}")
    while True:
        inner, at = _tag_at(body, at)
        if inner == tag + 1:  # the end of this group
            return at
        at = _skip(body, at, inner, depth + 1)
