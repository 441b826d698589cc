"""Removes private keys in PuTTY's format (.ppk), in a text or in JSON, also without their end or beginning.

Public-Lines: 6         stays, with its lines
Private-Lines: 8        the 8 lines below it are removed
Private-MAC: 4b6c…      the end of the key
"""

from __future__ import annotations

import re
from typing import Final

from bootbridge.common.named_values import GONE

_GONE: Final = GONE.encode()
HEADER: Final = re.compile(rb"(\bPrivate-Lines:[ \t]{0,8})([0-9]{1,3})(?![0-9])")
_END: Final = b"Private-MAC:"
_LINE: Final = re.compile(
    rb"""(?:\\{1,8}[rn]|[\s"',>|]){1,200}(?!Private-MAC)[A-Za-z0-9+/]{1,64}={0,2}(?![A-Za-z0-9:+/-])"""
)
# What the lines of a key consist of, with line ends as in text and JSON.
_BODY: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/= \t\r\n\\"
_BODY_MIN: Final = 16


def without_keys(data: bytes) -> bytes:
    """Returns the text with a marker in place of each key's private lines."""
    if _END not in data and b"Private-Lines:" not in data:
        return data
    parts = _without_counted_lines(data).split(_END)
    return _END.join([*map(_without_last_lines, parts[:-1]), parts[-1]])


def _without_counted_lines(data: bytes) -> bytes:
    pieces, at = [], 0
    while found := HEADER.search(data, at):
        start = stop = found.end()
        for _ in range(int(found[2])):
            if not (line := _LINE.match(data, stop)):
                break
            stop = line.end()
        pieces += [data[at:start], b"\n" + _GONE if stop > start else b""]
        at = stop
    return b"".join([*pieces, data[at:]])


def _without_last_lines(text: bytes) -> bytes:
    """Removes the last lines of a key whose beginning is missing."""
    kept = text.rstrip(_BODY)
    is_removed = kept.endswith(_GONE) or HEADER.search(kept[-32:])
    return text if is_removed or len(text) - len(kept) < _BODY_MIN else kept + _GONE + b"\n"
