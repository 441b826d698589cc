"""Finds in a CLI's JSON what a lookup asks for: here for us, and as a jq filter for the scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bootbridge.bootstrap.firewall.model import Lookup

# Ids, names and addresses; what goes into commands holds nothing else, whoever answered.
SAFE = re.compile(r"[A-Za-z0-9._:/~-]+")


def find(lookup: Lookup, answer: str) -> list[str]:
    """The values sought. Raises ValueError if the answer is no JSON, or a value is none that we would use."""
    document = json.loads(answer) if answer.strip() else None
    found = [
        str(value)
        for item in _walk([document], lookup.items)
        if all(_is(item, path, value) for path, value in lookup.where)
        and not any(_is(item, path, value) for path, value in lookup.unless)
        for value in _walk([item], lookup.give)
        if value is not None
    ]
    found = [value.rpartition("/")[2] for value in found] if lookup.last_part else found
    for value in found:
        if not SAFE.fullmatch(value):
            raise ValueError(f"{value!r} is no id")
    return found


def jq_filter(lookup: Lookup) -> str:
    """The same for jq."""
    steps = [_jq_path(lookup.items)]
    steps += [f"select({_jq_path(path)} == {json.dumps(value)})" for path, value in lookup.where]
    steps += [f"select({_jq_path(path)} != {json.dumps(value)})" for path, value in lookup.unless]
    steps += [f"{_jq_path(lookup.give)} // empty"]
    steps += ['split("/") | last'] if lookup.last_part else []
    return " | ".join(steps)


def _is(item: object, path: str, value: str | int) -> bool:
    return value in _walk([item], path)


def _walk(values: Iterable[Any], path: str) -> Iterator[Any]:
    for part in path.split("."):
        key = part.removesuffix("[]")
        if key:
            values = [value.get(key) for value in values if isinstance(value, dict)]
        if part.endswith("[]"):
            values = [entry for value in values if isinstance(value, list) for entry in value]
    return iter(values)


def _jq_path(path: str) -> str:
    parts = (
        f".{part.removesuffix('[]')}" + ("[]?" if part.endswith("[]") else "") for part in path.split(".")
    )
    return "".join(parts)
