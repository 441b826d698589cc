"""Finds the positions of values in a JSON text, so that an edit changes nothing else.

Serialising a document again would change its spacing and escapes. These functions parse one level at a time
and use the C parser for everything below it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from bootbridge.errors import OperatorError

_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True)
class JsonSpan:
    """Holds a value and its position: `text[start:end]`."""

    start: int
    end: int
    content: Any = field(repr=False)
    key: str = ""  # in an object


def root(text: str, name: str) -> JsonSpan:
    """Returns the whole document. `name` is the file in errors."""
    try:
        start = _skip_space(text, 0)
        content, end = _DECODER.raw_decode(text, start)
        if _skip_space(text, end) != len(text):
            raise json.JSONDecodeError("extra data", text, end)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise OperatorError(f"invalid JSON: {error.msg} at {where}", subject=name) from error
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"invalid JSON: {error}", subject=name) from error
    return JsonSpan(start, end, content)


def members(text: str, parent: JsonSpan) -> Iterator[JsonSpan]:
    """Yields an object's members in the order of the text, with duplicate keys."""
    at = _skip_space(text, parent.start + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip_space(text, at)  # the colon
        start = _skip_space(text, at + 1)
        content, end = _DECODER.raw_decode(text, start)
        yield JsonSpan(start, end, content, key)
        at = _next(text, end)


def elements(text: str, parent: JsonSpan) -> Iterator[JsonSpan]:
    at = _skip_space(text, parent.start + 1)
    while text[at] != "]":
        content, end = _DECODER.raw_decode(text, at)
        yield JsonSpan(at, end, content)
        at = _next(text, end)


def member(text: str, parent: JsonSpan, key: str) -> JsonSpan | None:
    """Returns the member of that name, or None.

    Ignition ignores the case of keys and uses the last duplicate. Such a document is rejected, because an
    edit could change a member that Ignition ignores.
    """
    found = [value for value in members(text, parent) if value.key.lower() == key.lower()]
    if not found:
        return None
    if len(found) > 1:
        raise OperatorError("duplicate key", subject=key)
    if found[0].key != key:
        raise OperatorError(f"invalid spelling {found[0].key!r}", subject=key)
    return found[0]


def _next(text: str, end: int) -> int:
    """Returns the start of the next value, or the position of the closing bracket."""
    at = _skip_space(text, end)
    return _skip_space(text, at + 1) if text[at] == "," else at


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"invalid value {word}")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
