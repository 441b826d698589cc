"""Where things stand inside a JSON text, so that an edit touches only what it is about.

Parsing and writing a document anew would lose its spacing, key order and escapes. These
functions look at one level at a time and leave everything below it to the C parser.
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
    """A value and the text it takes: `text[start:end]`."""

    start: int
    end: int
    content: Any = field(repr=False)
    key: str = ""  # in an object


def root(text: str, name: str) -> JsonSpan:
    """The whole document; `name` is what errors call the file."""
    try:
        start = _skip_space(text, 0)
        content, end = _DECODER.raw_decode(text, start)
        if _skip_space(text, end) != len(text):
            raise json.JSONDecodeError("there is more after its end", text, end)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise OperatorError(f"is no JSON: {error.msg} at {where}", subject=name) from error
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"is no JSON that can be read: {error}", subject=name) from error
    return JsonSpan(start, end, content)


def members(text: str, parent: JsonSpan) -> Iterator[JsonSpan]:
    """What an object holds, in the order of the text; a key given twice comes twice."""
    at = _skip_space(text, parent.start + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip_space(text, at)  # the colon
        start = _skip_space(text, at + 1)
        content, end = _DECODER.raw_decode(text, start)
        yield JsonSpan(start, end, content, key)
        at = _next(text, end)


def elements(text: str, parent: JsonSpan) -> Iterator[JsonSpan]:
    """What an array holds."""
    at = _skip_space(text, parent.start + 1)
    while text[at] != "]":
        content, end = _DECODER.raw_decode(text, at)
        yield JsonSpan(at, end, content)
        at = _next(text, end)


def member(text: str, parent: JsonSpan, key: str) -> JsonSpan | None:
    """The member of that name, or nothing.

    Ignition reads keys whatever their case and takes the last of several; here such a
    document is refused, because an edit could land in the one that does not count.
    """
    found = [value for value in members(text, parent) if value.key.lower() == key.lower()]
    if not found:
        return None
    if len(found) > 1:
        raise OperatorError("is given more than once", subject=key)
    if found[0].key != key:
        raise OperatorError(f"is written {found[0].key!r}", subject=key)
    return found[0]


def _next(text: str, end: int) -> int:
    """Behind a value: the start of the next one, or the closing bracket."""
    at = _skip_space(text, end)
    return _skip_space(text, at + 1) if text[at] == "," else at


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
