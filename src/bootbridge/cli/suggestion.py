"""Finds the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(word: str, names: Iterable[str], cutoff: float = 0.7) -> str:
    """Returns `did you mean NAME?`, or nothing if no name is close."""
    import difflib

    near = difflib.get_close_matches(word, [name for name in names if name], n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else ""
