"""A part of a document that a tool writes, between two markers."""

from __future__ import annotations


def replaced(text: str, begin: str, end: str, content: str) -> str:
    """Returns the document with `content` between the lines `begin` and `end`, which must exist."""
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    assert found, f"missing {begin.strip()} … {end.strip()}"
    return f"{before}{begin}{content}{end}{after}"
