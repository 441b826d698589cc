"""Makes texts safe to print: control characters are escaped, and characters that the output cannot show."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

# How our own texts look in ASCII. Every other character is shown as its escape, so that no fact is lost.
_ASCII = {
    "…": "...",
    "–": "-",
    "—": "-",
    "·": "-",
    "×": "x",
    "→": "->",
    "←": "<-",
    "─": "-",
    "▶": ">",
    "◀": "<",
    "✓": "ok",
    "✗": "FAIL",
    "≥": ">=",
    "≤": "<=",
    "\N{NO-BREAK SPACE}": " ",
}
_ASCII_LOCALES = ("C", "POSIX")


def escape_control_characters(text: str) -> str:
    """Returns one line that cannot control a terminal: peers and files choose parts of our messages."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shows_unicode(out: TextIO | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the output can show characters beyond ASCII: its encoding can, and the locale is not C.

    Python writes UTF-8 in the C locale too, but a terminal in that locale does not show it. Without any
    locale setting, as in most containers, Python sets LC_CTYPE to C.UTF-8.
    """
    names = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    if next(filter(None, names), "") in _ASCII_LOCALES:
        return False
    encoding = getattr(out, "encoding", None) or "utf-8"
    return encoding.lower().replace("-", "").replace("_", "").startswith("utf")


def for_output(text: str, out: TextIO | None, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the text with what the output cannot show in ASCII, or as an escape that JSON reads too."""
    if text.isascii() or shows_unicode(out, environment):
        return text
    return "".join(c if c.isascii() else _ASCII.get(c) or _escape(c) for c in text)


def _escape(character: str) -> str:
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))
