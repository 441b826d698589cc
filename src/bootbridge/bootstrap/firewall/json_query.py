"""Selects a lookup's values from the JSON output of a CLI: in Python, and as a jq filter for the scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bootbridge.bootstrap.firewall.model import Lookup

# IDs, names and addresses. A value with other characters must not reach a command line.
SAFE = re.compile(r"[A-Za-z0-9._:/~-]+")


def select_values(lookup: Lookup, answer: str) -> list[str]:
    """Returns the values found. Raises ValueError on invalid JSON or unsafe characters."""
    document = json.loads(answer) if answer.strip() else None
    found = [
        str(value)
        for item in _walk([document], lookup.items)
        if all(_matches(item, path, value) for path, value in lookup.where)
        and not any(_matches(item, path, value) for path, value in lookup.excluding)
        for value in _walk([item], lookup.select)
        if value is not None
    ]
    found = [value.rpartition("/")[2] for value in found] if lookup.basename else found
    if lookup.after:
        parts = (re.search(f"/{lookup.after}/([^/]+)", value, re.IGNORECASE) for value in found)
        found = [part[1] for part in parts if part]
    found = list(dict.fromkeys(found))
    for value in found:
        if not SAFE.fullmatch(value):
            raise ValueError(f"invalid ID {value!r}")
    return found


def jq_filter(lookup: Lookup) -> str:
    """Returns the jq filter that selects the same values."""
    steps = [_jq_path(lookup.items)]
    steps += [f"select({_jq_equal(path, value)})" for path, value in lookup.where]
    steps += [f"select({_jq_path(path)} != {json.dumps(value)})" for path, value in lookup.excluding]
    steps += [f"{_jq_path(lookup.select)} // empty"]
    steps += ['split("/") | last'] if lookup.basename else []
    steps += [f'capture("/{lookup.after}/(?<part>[^/]+)"; "i").part'] if lookup.after else []
    return " | ".join(steps)


def _matches(item: object, path: str, value: str | int | tuple[str, ...]) -> bool:
    wanted = value if isinstance(value, tuple) else (value,)
    return any(found in wanted for found in _walk([item], path))


def _jq_equal(path: str, value: str | int | tuple[str, ...]) -> str:
    wanted = value if isinstance(value, tuple) else (value,)
    return " or ".join(f"{_jq_path(path)} == {json.dumps(each)}" for each in wanted)


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
