"""One sample as text for a pipe, or as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.text import Text

from bootbridge.top.layout import fitted
from bootbridge.top.rates import History
from bootbridge.top.screen import ansi
from bootbridge.top.snapshot import Snapshot
from bootbridge.top.tables import tables_of, visible_rows
from bootbridge.top.text import ascii_text
from bootbridge.top.view import LinkState, summary, table_lines

DIALS_MAX = 20


def plain_text(history: History, source: str) -> str:
    """Returns summary and tables in ASCII, without colour; no cell is cut."""
    return "".join(f"{ascii_text(line.plain.rstrip())}\n" for line in _lines(history, source, None))


def coloured_text(history: History, source: str, width: int, *, no_color: bool = False) -> str:
    """Returns the same for a terminal of this width."""
    lines = (fitted(line, width) for line in _lines(history, source, width))
    return "".join(f"{ansi(line, no_color=no_color)}\n" for line in lines)


def _lines(history: History, source: str, width: int | None) -> Iterator[Text]:
    sample = history.current
    assert sample is not None
    yield from summary(history, LinkState(source, 0.0), width)
    for table in tables_of(sample):
        rows = visible_rows(table, history, -1, False, "")
        if table.name in ("Dials", "Failures"):
            rows = rows[:DIALS_MAX]
        yield Text()
        total = table.total(sample)
        shown = f"{len(rows):,} of {total:,}" if len(rows) < total else f"{total:,}"
        yield Text(f"{table.name} ({shown})", "bold")
        yield from table_lines(table, rows, width) if rows else [Text(table.empty, "dim")]


def json_text(history: History, source: str) -> str:
    """Returns one document: the rates, the totals, and the program's own status if it has one."""
    sample = history.current
    assert sample is not None
    return json.dumps(_document(history, sample, source), indent=2, default=str) + "\n"


def _document(history: History, sample: Snapshot, source: str) -> dict[str, object]:
    rates = history.rates
    return {
        "version": 1,
        "source": source,
        "page": "/status" if sample.has_details else "/metrics",
        "note": sample.note,
        "program": sample.program,
        "ready": sample.ready,
        f"{sample.peer_name}s": sample.peers_total,
        "connections": sample.connections_total,
        "pendingDials": sample.pending_dials,
        "dials": {"succeeded": sample.dials_succeeded, "failedByHop": dict(sample.dials_failed)},
        "bytes": {"up": sample.bytes_up, "down": sample.bytes_down},
        "rates": {
            "seconds": round(rates.seconds, 3),
            "dialsPerSecond": _rounded(rates.dials),
            "failuresPerSecond": _rounded(rates.failures),
            "bytesUpPerSecond": _rounded(rates.up),
            "bytesDownPerSecond": _rounded(rates.down),
        },
        "warnings": list(sample.warnings),
        "status": dict(sample.document) or None,
        "metrics": [{"name": row.name, "labels": row.labels, "value": row.value} for row in sample.counters],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
