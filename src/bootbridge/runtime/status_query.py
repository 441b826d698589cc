"""The query of `/status`, and what the documents of server and agent share: pages, times, JSON."""

from __future__ import annotations

import heapq
import json
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, TypeVar
from urllib.parse import unquote_plus

from bootbridge import __version__, installation
from bootbridge.metrics import Counter as CounterMetric
from bootbridge.metrics import Family
from bootbridge.runtime.sliced_work import Steps, chunks

ROWS_DEFAULT: Final = 100
ROWS_MAX: Final = 1000
FILTER_CHARS_MAX: Final = 512
SORTS: Final = ("age", "bytes", "queued")

# More destinations are not in a document.
DESTINATIONS_MAX: Final = 50

Row = TypeVar("Row")
Key = TypeVar("Key", bound=Hashable)
Document = dict[str, object]


@dataclass(frozen=True)
class StatusQuery:
    """Which rows of the lists to return. Totals are always complete."""

    agents_offset: int = 0
    agents_limit: int = ROWS_DEFAULT
    connections_offset: int = 0
    connections_limit: int = ROWS_DEFAULT
    filter: str = ""
    sort: str = "age"


def parse_query(query: Mapping[str, str]) -> StatusQuery:
    """Parses the query of a URL. Raises ValueError for an invalid value; other names have no effect."""
    known = {field.name for field in fields(StatusQuery)}
    texts = {name: unquote_plus(value) for name, value in query.items() if name in known}
    if len(texts.get("filter", "")) > FILTER_CHARS_MAX:
        raise ValueError(f"filter: more than {FILTER_CHARS_MAX} characters")
    if texts.get("sort", "age") not in SORTS:
        raise ValueError(f"sort: unknown order {texts['sort'][:40]!r} (use {', '.join(SORTS)})")
    return StatusQuery(
        agents_offset=_number(texts, "agents_offset", 0),
        agents_limit=min(_number(texts, "agents_limit", ROWS_DEFAULT), ROWS_MAX),
        connections_offset=_number(texts, "connections_offset", 0),
        connections_limit=min(_number(texts, "connections_limit", ROWS_DEFAULT), ROWS_MAX),
        filter=texts.get("filter", ""),
        sort=texts.get("sort", "age"),
    )


def _number(texts: Mapping[str, str], name: str, default: int) -> int:
    text = texts.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{name}: invalid number {text[:40]!r} (use 0 to 999999999)")
    return int(text)


def first_rows(rows: Sequence[Row], key: Callable[[Row], int], offset: int, limit: int) -> Steps[list[Row]]:
    """Returns one page of the sorted rows; equal ones stay in their order."""
    found: list[Row] = []
    for chunk in chunks(rows):
        found = heapq.nsmallest(offset + limit, [*found, *chunk], key=key)
        yield
    return found[offset:]


def total(numbers: Iterable[int]) -> Steps[int]:
    result = 0
    for chunk in chunks(numbers):
        result += sum(chunk)
        yield
    return result


def busiest(
    connections: Counter[Key], dials: Iterable[Key], failures: Iterable[Key]
) -> list[tuple[Key, Document]]:
    """Returns the keys with the most connections and last dials together, with the three numbers of each."""
    recent, failed = Counter(dials), Counter(failures)
    total = connections.copy()
    total.update(recent)
    total.update(failed)
    return [
        (key, {"connections": connections[key], "recentDials": recent[key], "recentFailures": failed[key]})
        for key, _ in total.most_common(DESTINATIONS_MAX)
    ]


def timestamp(seconds: float) -> str | None:
    """Returns a time in UTC with milliseconds; None for infinity."""
    if seconds - seconds != 0:
        return None
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


def process_status(program: str, *, uptime_seconds: float) -> Document:
    """The first keys of both documents."""
    return {
        "program": program,
        "version": __version__,
        "compiled": installation.COMPILED,
        "time": timestamp(time.time()),
        "uptimeSeconds": round(uptime_seconds, 3),
    }


def limit_row(name: str, current: int | None, maximum: int | None, reached_total: float) -> Document:
    """A bound of docs/limits.md; None: not counted, or without a single value."""
    return {"name": name, "current": current, "maximum": maximum, "reachedTotal": reached_total}


def count_of(family: Family[CounterMetric], label: str) -> float:
    """Returns a counter's value; 0 if it does not exist, which asking must not change."""
    return next((child.value for labels, child in family.items() if labels == (label,)), 0)


def descriptor_limit(reached_total: float) -> Document:
    maximum, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Linux 6.2 and later count them there; listing 10,000 takes 20 ms.
    count = os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    return limit_row("file descriptors", count, maximum, reached_total)


def encode(document: Mapping[str, object]) -> Steps[str]:
    """Returns JSON with one line for each key and each row: readable, and a fifth of the time of `indent`."""
    lines = []
    for key, value in document.items():
        text = yield from _value(value)
        lines.append(f"\n {json.dumps(key)}: {text}")
    return "{" + ",".join(lines) + "\n}\n"


def _value(value: object) -> Steps[str]:
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return json.dumps(value)
    lines = []
    for row in value:
        lines.append(f"\n  {json.dumps(row)}")
        yield
    return "[" + ",".join(lines) + "]"
