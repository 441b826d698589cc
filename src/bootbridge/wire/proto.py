"""Protobuf messages as frozen dataclasses: a field has a number, and its type determines the encoding.

    @dataclass(frozen=True, slots=True)
    class Component(Message):
        url: str = at(1, "")
        files: tuple[ControlPlaneFile, ...] = at(2, ())
        token: bytes = at(3, b"", secret=True)      # not in repr

Types: str, bytes, bool, int (not negative), another message or None, and tuples of str, bytes and messages;
not of numbers, which protobuf would pack. Unknown fields are skipped. If a field is repeated, the last value
is used, also where protobuf would merge two messages.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from bootbridge.errors import LocalError, PeerError
from bootbridge.wire.packets import PacketError, fields, varint

NUMBER, CHUNK = 0, 2


class MessageError(PeerError):
    """Invalid protobuf message."""


def at(number: int, default: Any, *, secret: bool = False) -> Any:
    """Declares a field with its protobuf number; a secret one is not in `repr`."""
    return dataclasses.field(default=default, repr=not secret, metadata={"number": number})


class Message:
    """Base of the messages; subclasses are frozen dataclasses whose fields are made by `at`."""

    __slots__ = ()

    def encode(self) -> bytes:
        out = bytearray()
        for name, field in _known(type(self)).in_order:
            value = getattr(self, name)
            for each in value if field.repeated else (value,):
                # Proto3 omits defaults, except inside a list.
                if each is not None and (each or field.repeated or isinstance(each, Message)):
                    out += field.tag + field.write(each)
        return bytes(out)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        try:
            found = fields(bytes(body))
        except PacketError as error:
            raise MessageError(f"{cls.__name__}: {error}") from error
        known = _known(cls).by_tag
        values: dict[str, Any] = {}
        lists: dict[str, list[Any]] = {}
        for tag, raw in found:
            if tag in known:
                name, field = known[tag]
                value = field.read(cls, name, raw)
                if field.repeated:
                    lists.setdefault(name, []).append(value)
                else:
                    values[name] = value
        return cls(**values, **{name: tuple(items) for name, items in lists.items()})


@dataclass(frozen=True, slots=True)
class _Field:
    tag_number: int
    tag: bytes
    repeated: bool
    write: Callable[[Any], bytes]
    parse: Callable[[Any], Any]

    def read(self, owner: type, name: str, raw: Any) -> Any:
        try:
            return self.parse(raw)
        except UnicodeDecodeError:
            raise MessageError(f"{owner.__name__}.{name}: invalid UTF-8") from None
        except ValueError as error:
            raise MessageError(f"{owner.__name__}.{name}: {error}") from None


class _Fields:
    """The fields of one kind of message, by name in their order, and by tag."""

    def __init__(self, message: Any) -> None:
        hints = typing.get_type_hints(message)
        self.in_order = tuple(
            (field.name, _field(field.metadata["number"], hints[field.name]))
            for field in dataclasses.fields(message)
        )
        self.by_tag = {field.tag_number: (name, field) for name, field in self.in_order}


_KNOWN: dict[type, _Fields] = {}


def _known(message: Any) -> _Fields:
    found = _KNOWN.get(message)
    if found is None:
        found = _KNOWN[message] = _Fields(message)
    return found


def _field(number: int, hint: Any) -> _Field:
    repeated = typing.get_origin(hint) is tuple
    kind = typing.get_args(hint)[0] if repeated else hint
    if isinstance(kind, types.UnionType):
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    wire_type, write, parse = _codec(kind)
    if repeated and wire_type == NUMBER:
        raise TypeError("lists of numbers are not supported (packed encoding)")
    tag = number << 3 | wire_type
    return _Field(tag, varint(tag), repeated, write, parse)


def _codec(kind: Any) -> tuple[int, Callable[[Any], bytes], Callable[[Any], Any]]:
    if kind is bytes:
        return CHUNK, _chunk, bytes
    if kind is str:
        return CHUNK, lambda text: _chunk(text.encode()), lambda raw: raw.decode()
    if kind is bool:
        return NUMBER, lambda value: varint(int(value)), bool
    if kind is int:
        return NUMBER, _number, _unsigned
    if isinstance(kind, type) and issubclass(kind, Message):
        return CHUNK, lambda message: _chunk(message.encode()), kind.decode
    raise TypeError(f"no protobuf type for {kind!r}")


def _chunk(value: bytes) -> bytes:
    return varint(len(value)) + value


def _number(value: int) -> bytes:
    if not 0 <= value < 1 << 63:
        raise LocalError(f"number out of range: {value}")
    return varint(value)


def _unsigned(value: int) -> int:
    if value < 0:
        raise ValueError("negative")
    return value
