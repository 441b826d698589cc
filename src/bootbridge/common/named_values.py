"""Removes the values of secret names from a text.

As `name: value`, `name=value`, `"name": "value"`, `--name value` (also as two items of a list, or two lines
of a command line), `{"name": NAME, "value": VALUE}`, in headers and XML, and on the lines below the name in
YAML: a block, a list, or the rest of a long string.

One pass from left to right: every pattern is bounded, and a value is read once, so that the time grows
linearly with the text, also for hostile input. Where the end of a value is unclear, more is removed.
"""

from __future__ import annotations

import re
from typing import Final

from bootbridge.common.secret_names import is_secret, may_be_secret

GONE: Final = "[redacted]"
_GONE: Final = GONE.encode()
_NAME_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_NAME_MAX: Final = 64
_WINDOW: Final = 4096
_BLANK: Final = re.compile(rb"\s")
# From the word that makes a name secret to the value: rest of the name, quotes, separator.
_NAMED: Final = re.compile(
    rb"""(?i)(?:pass|pwd|secret|token|credential|key|auth|cookie|sig|pat|sas|pw|psk|community)[A-Za-z0-9_.-]{0,64}"""
    rb"""(?P<quote>\\{0,8}["']?)\]?"""
    rb"""(?P<sep>,?(?:[ \t]{1,20}\\)?\r?\n[ \t]{0,80}(?:- {1,8})?(?![ \t\r\n-])"""
    rb"""|[ \t]{0,20}(?:=>|:=|[:=>]|,)[ \t]{0,20}|[ \t]{1,20}(?![ \t\\:=,>-]))"""
)
# The name in a pair: after it, `value` follows.
_PAIR: Final = re.compile(
    rb"""(?i)\b(?:name|key)\\{0,8}["']?[ \t]{0,20}[:=][ \t]{0,20}\\{0,8}["']?(?P<name>[A-Za-z0-9_.-]{1,64})"""
    rb"""\\{0,8}["']?(?:[,;\s]|\\n|- ){1,200}(?P<begin>)"""
    rb"""\\{0,8}["']?value\\{0,8}["']?[ \t]{0,20}[:=][ \t]{0,20}"""
)
_OPENING: Final = re.compile(rb"""[bru]?(?P<mark>\"{3}|'{3}|\\{0,8}["'])""")
# What may stand before a name that begins its line in YAML.
_KEY_START: Final = re.compile(rb"""[ \t]{0,200}(?:- {1,8}){0,4}["']?""")
_LIST_ITEM: Final = re.compile(rb"""[ \t]{0,200}- {1,8}(?![{-]|["']?[A-Za-z0-9_./-]{1,128}["']?:(?:\s|$))""")
_FLAG_ALONE: Final = re.compile(rb"[^\s\"'-][^\s\"']{0,4096}\r?$", re.MULTILINE)
_IMAGE_VARIABLE: Final = re.compile(rb"(?i)(?:^|[ \t])env[ \t]{1,8}$")
_LINE_START: Final = re.compile(
    rb"(?i)[ \t]{0,4096}(?:- {1,80})?(?:(?:export|set|env|arg|declare -x|environment=|#)[ \t]{0,80})?"
)
_BLOCK: Final = re.compile(rb"[|>][0-9+-]{0,2}[ \t]{0,20}\r?\n")
_STRUCTURE: Final = re.compile(
    rb"""\s{0,80}(?:[{]|-[ \t\n]|["']?[A-Za-z0-9_./-]{1,128}["']?[ \t]{0,20}:(?:\s|$))"""
)
_STRINGS: Final = re.compile(rb"""\[\s{0,80}\\{0,8}["']""")
_SUMMARY: Final = re.compile(rb"\[redacted\] [0-9]{1,12} bytes, sha256 [0-9a-f]{16}\xe2\x80\xa6")
# The rest of the line is the value: it has blanks inside.
_WHOLE_LINE: Final = ("authorization", "cookie")


def without_named_values(data: bytes) -> bytes:
    """Returns the text with a marker in place of each value."""
    return _Scan(_Scan(data).run(_PAIR)).run(_NAMED)


class _Scan:
    """One pass over a text. Positions only grow, so the end of a long line is looked for once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        # The last answer of _line_end, and the least position that it is right for.
        self._line_from, self._line_to = 1, 0

    def run(self, pattern: re.Pattern[bytes]) -> bytes:
        data, pieces = self._data, []
        done = at = 0
        while found := pattern.search(data, at):
            at = found.end()
            start, end = self._value_of(found, pattern is _PAIR)
            if start < end:
                pieces += [data[done:start], _GONE]
                done = at = end
        return b"".join([*pieces, data[done:]]) if pieces else data

    def _value_of(self, found: re.Match[bytes], is_pair: bool) -> tuple[int, int]:
        """Returns where the secret value begins and ends; an empty range if there is none."""
        data, nothing = self._data, (0, 0)
        if is_pair:
            name, begin = found["name"], found.start("begin")
        else:
            begin = _name_begin(data, found.start())
            name = data[begin : found.start("quote")]
            is_public = name.lower() == b"key" and data[max(0, begin - 7) : begin].lower() == b"public "
            if is_public or not _is_separated(data, found, begin, name):
                return nothing
        text = name.decode("ascii").strip("-")
        if not may_be_secret(text):
            return nothing
        start, end = self._extent(found.end(), begin, text)
        value = data[start:end]
        if start >= end or _SUMMARY.fullmatch(value) or value == _GONE:
            return nothing
        items = (
            re.split(rb"\n[ \t]*- +", value) if _LIST_ITEM.match(data, _line_begin(data, start)) else [value]
        )
        if not any(is_secret(text, _shown(each)) for each in items):
            return nothing
        return start, self._continued(begin, end) if b":" in found["sep" if not is_pair else 0] else end

    # --- where a value ends

    def _extent(self, at: int, begin: int, name: str) -> tuple[int, int]:
        data = self._data
        if block := _BLOCK.match(data, at):
            return self._indented(begin, block.end())
        if data[at : at + 1] in (b"\n", b"\r", b""):
            return self._below(begin, at)
        if opening := _OPENING.match(data, at):
            return opening.end(), self._quoted_end(opening.end(), opening["mark"])
        if _STRINGS.match(data, at):
            end = data.find(b"]", at, at + _WINDOW)
            return at + 1, end if end >= 0 else self._line_end(at)
        if data[at : at + 1] in (b"{", b"["):
            return at, at + len(_GONE) if data.startswith(_GONE, at) else at
        return at, self._plain_end(at, begin, name)

    def _line_end(self, at: int) -> int:
        if not self._line_from <= at <= self._line_to:
            end = self._data.find(b"\n", at)
            self._line_from, self._line_to = at, len(self._data) if end < 0 else end
        return self._line_to

    def _quoted_end(self, at: int, mark: bytes) -> int:
        """Returns the position of the closing quote, with as many backslashes as the opening one."""
        data, end, search = self._data, self._line_end(at), at
        if len(mark) == 3 and mark[:1] != b"\\":  # on several lines in TOML
            found = data.find(mark, at, at + _WINDOW)
            return found if found >= 0 else end
        while (found := data.find(mark, search, end)) >= 0:
            before = found
            while before > at and data[before - 1] == 0x5C:
                before -= 1
            # In a string of depth n a closing quote has n backslashes, an escaped one at least 2n + 1.
            if before == found or (mark[:1] != b"\\" and (found - before) % 2 == 0):
                return found
            search = found + len(mark)
        return end

    def _plain_end(self, at: int, begin: int, name: str) -> int:
        data, end = self._data, self._line_end(at)
        before = data[max(0, begin - 1) : begin]
        if before in (b'"', b"'"):  # "NAME=a value with blanks"
            mark = data[_backslashes(data, begin - 1) : begin]
            return self._quoted_end(at, mark)
        if before == b"<":
            closing = data.find(b"<", at, end)
            return end if closing < 0 else closing
        line = _line_begin(data, begin)
        starts = _LINE_START.match(data, line)
        if not name.lower().endswith(_WHOLE_LINE) and not (starts and starts.end() >= begin):
            blank = _BLANK.search(data, at, end)
            end = blank.start() if blank else end
        return _before_quote(data, at, end, data[line:begin])

    def _below(self, begin: int, at: int) -> tuple[int, int]:
        """The value is on the lines below, unless a structure is there."""
        start = self._line_end(at) + 1
        if start < len(self._data) and (item := _LIST_ITEM.match(self._data, start)):
            return item.end(), self._list_end(start)
        if start >= len(self._data) or _STRUCTURE.match(self._data, start):
            return at, at
        return self._indented(begin, start)

    def _list_end(self, start: int) -> int:
        """Returns the end of the last item of a list of texts."""
        data, depth, at, end = self._data, _indent(self._data, start), start, start
        while at < len(data) and (
            _indent(data, at) > depth or (_indent(data, at) == depth and _LIST_ITEM.match(data, at))
        ):
            end = self._line_end(at)
            at = end + 1
        return end

    def _continued(self, begin: int, end: int) -> int:
        """Returns the end of a value that goes on below: a long string, which YAML breaks."""
        data = self._data
        line = _line_begin(data, begin)
        at = self._line_end(end) + 1
        if end + 1 < at - 1 or not _KEY_START.fullmatch(data, line, begin):
            return end  # something follows it in its line
        depth = len(data[line:begin].rstrip(b"\"'"))
        while at < len(data) and _indent(data, at) > depth and not _STRUCTURE.match(data, at):
            end = self._line_end(at)
            at = end + 1
        return end

    def _indented(self, begin: int, start: int) -> tuple[int, int]:
        """Returns the range of the lines that are indented deeper than the name."""
        data = self._data
        depth, at, end = _indent(data, _line_begin(data, begin)), start, start
        while at < len(data):
            line_end = self._line_end(at)
            if data[at:line_end].strip():
                if _indent(data, at) <= depth:
                    break
                end = line_end
            at = line_end + 1
        return min(start + _indent(data, start), end), end


def _name_begin(data: bytes, at: int) -> int:
    least = max(0, at - _NAME_MAX)
    while at > least and data[at - 1] in _NAME_BYTES:
        at -= 1
    return at


def _is_separated(data: bytes, found: re.Match[bytes], begin: int, name: bytes) -> bool:
    """Whether the separator is one for this kind of name."""
    if b"\n" in found["sep"]:
        return _is_on_the_next_line(data, found, begin, name)
    separator = found["sep"].strip()
    if not separator:
        is_flag = name.startswith(b"-") and not found["quote"]
        return is_flag or bool(_IMAGE_VARIABLE.search(data, max(0, begin - 16), begin))
    if separator == b">":
        return data[begin - 1 : begin] == b"<"
    if separator == b",":  # ("x-auth-token", "…") and ["authorization", "…"], not ["secrets", "pods"]
        is_header = b"-" in name or b"_" in name or name.lower() in (b"authorization", b"cookie")
        return bool(found["quote"]) and is_header and bool(_OPENING.match(data, found.end()))
    return True


def _is_on_the_next_line(data: bytes, found: re.Match[bytes], begin: int, name: bytes) -> bool:
    """Whether a flag's value follows it as the next item of a list, the next line of a command, or in
    /proc/PID/cmdline, which has null bytes in place of line ends."""
    if not name.startswith(b"-"):
        return False
    separator, line = found["sep"], data[_line_begin(data, begin) : begin].strip(b" \t\"'")
    if line == b"-" or b"," in separator or b"\\" in separator:
        return True if line != b"-" else b"- " in separator
    return not line and separator in (b"\n", b"\r\n") and bool(_FLAG_ALONE.match(data, found.end()))


def _shown(value: bytes) -> str:
    return value.decode("utf-8", "replace").strip(" \t\r\n,;)}]")


def _line_begin(data: bytes, at: int) -> int:
    """Returns the begin of the line, at most _WINDOW before."""
    least = max(0, at - _WINDOW)
    return max(least, data.rfind(b"\n", least, at) + 1)


def _backslashes(data: bytes, at: int) -> int:
    """Returns the position of the first of the backslashes before `at`."""
    least = max(0, at - 8)
    while at > least and data[at - 1] == 0x5C:
        at -= 1
    return at


def _before_quote(data: bytes, at: int, end: int, line: bytes) -> int:
    """Returns `end`, or the end of the string that the whole pair is in."""
    ends = [data.find(quote, at, end) for quote in (b'"', b"'") if quote in line]
    found = min((each for each in ends if each >= 0), default=end)
    return max(at, _backslashes(data, found)) if found < end else end


def _indent(data: bytes, at: int) -> int:
    start = at
    while data[at : at + 1] in (b" ", b"\t") and at - start < _WINDOW:
        at += 1
    return at - start
