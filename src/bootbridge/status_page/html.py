"""Builds HTML and SVG. Every text is escaped, unless it was built here.

Agent ids, addresses and error texts come from peers and are hostile. So a `str` is always text, and only
`Markup` is HTML: no caller can forget to escape.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

_SPECIAL = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
# Elements without content, which have no end tag in HTML.
_VOID = frozenset(("meta", "link", "input", "br"))


class Markup(str):
    """Finished HTML."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"
Attribute = str | int | float | bool | None


def printable(text: str) -> str:
    """Replaces what does not show, or changes the direction of text, by its code: `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escape(text: str) -> str:
    """Returns text that is safe between tags and in quoted attributes."""
    return printable(text).translate(_SPECIAL)


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Returns an element. `class_` is `class`, `aria_label` is `aria-label`; None and False leave it out."""
    opening = name
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        opening += f" {key}" if value is True else f' {key}="{escape(str(value))}"'
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{markup(children)}</{name}>")


def markup(children: Child) -> Markup:
    """Joins children without an element around them; None is nothing."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return Markup(escape(children))
    if isinstance(children, int):
        return Markup(str(children))
    return Markup("".join([markup(child) for child in children]))
