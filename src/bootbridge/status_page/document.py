"""Reads the status document; what is missing in it is empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]


def text(document: Document, key: str) -> str:
    value = document.get(key)
    return "" if value is None else str(value)


def number(document: Document, key: str) -> float:
    value = document.get(key)
    return value if isinstance(value, int | float) else 0


def rows(document: Document, key: str) -> list[Document]:
    value = document.get(key)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list | tuple) else []


def texts(document: Document, key: str) -> list[str]:
    value = document.get(key)
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def part(document: Document, key: str) -> Document:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def total(document: Document, key: str) -> float:
    """Returns the sum of a mapping of numbers, as `dials.failed` is; or the number itself."""
    value = document.get(key)
    if isinstance(value, Mapping):
        return sum(each for each in value.values() if isinstance(each, int | float))
    return number(document, key)
