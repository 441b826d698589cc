"""Decodes what a terminal sends into names of keys."""

from __future__ import annotations

import codecs
import re

_NAMES = {
    "\x03": "ctrl-c",
    "\x04": "ctrl-d",
    "\x15": "ctrl-u",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
_SEQUENCES = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "Z": "backtab",
    "1~": "home",
    "7~": "home",
    "4~": "end",
    "8~": "end",
    "5~": "pageup",
    "6~": "pagedown",
}
_COMPLETE = re.compile(r"\x1b(?:\[([0-9;?]*[@-~])|O([@-~]))")
_INCOMPLETE = re.compile(r"\x1b(?:\[[0-9;?]*|O)?")
_PENDING_MAX = 64  # longer input without an end is not a key


class KeyDecoder:
    """A sequence may arrive in several reads: `feed` keeps its beginning, `flush` gives it up."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("ignore")
        self._pending = ""

    @property
    def is_waiting(self) -> bool:
        return bool(self._pending)

    def feed(self, data: bytes) -> list[str]:
        self._pending += self._utf8.decode(data)
        keys: list[str] = []
        while self._pending:
            if self._pending[0] != "\x1b":
                character, self._pending = self._pending[0], self._pending[1:]
                keys.append(_NAMES.get(character, character))
            elif found := _COMPLETE.match(self._pending):
                self._pending = self._pending[found.end() :]
                keys.append(_SEQUENCES.get(found[1] or found[2], "unknown"))
            elif _INCOMPLETE.fullmatch(self._pending) and len(self._pending) < _PENDING_MAX:
                break
            else:
                keys += self._escape()
        return keys

    def flush(self) -> list[str]:
        """Returns the escape key if one was pressed and nothing followed."""
        pending, self._pending = self._pending, ""
        return ["esc"] if pending == "\x1b" else []

    def _escape(self) -> list[str]:
        self._pending = self._pending[1:]
        return ["esc"]
