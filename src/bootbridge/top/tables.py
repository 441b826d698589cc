"""The tables: columns with their order, width and priority; sorted and filtered rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.text import Text

from bootbridge.common.terminal.styles import STYLES
from bootbridge.top.rates import History
from bootbridge.top.snapshot import ConnectionRow, DialRow, PeerRow, Row, RowRates, Snapshot
from bootbridge.top.text import (
    NOTHING,
    age_text,
    bytes_text,
    count_text,
    duration_text,
    per_second_text,
    rate_text,
)

GOOD, BAD, WARN, DIM, STRONG = (STYLES[name] for name in ("good", "bad", "warning", "dim", "strong"))
CREDENTIALS_WARNING_SECONDS = 3600.0


@dataclass(frozen=True)
class TableColumn:
    """`value` sorts, `cell` is what is shown. Columns with a high `priority` number are dropped first."""

    title: str
    value: Callable[[Any, RowRates], Any]
    cell: Callable[[Any, RowRates], Text | str]
    priority: int = 1
    width: int = 8  # minimum
    grows: int = 0  # share of the width that is left
    right: bool = False
    descending: bool = False  # the useful order of this column
    readable: int = 36  # a column that grows is at least this wide before less important ones are shown
    server_sort: str = ""  # name of the same order in the query of /status


@dataclass(frozen=True)
class TableSpec:
    name: str
    columns: tuple[TableColumn, ...]
    rows: Callable[[Snapshot], Sequence[Row]]
    total: Callable[[Snapshot], int]
    empty: str
    searched: tuple[str, ...] = field(default=())  # fields that a filter is compared with


def visible_rows(
    table: TableSpec, history: History, sort: int, reverse: bool, text: str
) -> list[tuple[Row, RowRates]]:
    """Returns the rows that contain `text`, in the order of one column; equal ones stay in their order."""
    if history.current is None:
        return []
    wanted = text.lower()
    rows = [
        (row, history.of(row))
        for row in table.rows(history.current)
        if not wanted or wanted in searched_text(table, row)
    ]
    if sort >= 0:
        column = table.columns[sort]
        rows.sort(key=lambda pair: _sortable(column.value(*pair)), reverse=column.descending != reverse)
    elif reverse:
        rows.reverse()
    return rows


def searched_text(table: TableSpec, row: Row) -> str:
    values = (getattr(row, name) for name in table.searched)
    return "\n".join(" ".join(v) if isinstance(v, tuple) else str(v) for v in values).lower()


def _sortable(value: Any) -> tuple[int, Any]:
    """Unknown values are below all others."""
    return (0, 0) if value is None else (1, value.lower() if isinstance(value, str) else value)


# --- cells


def _state(row: PeerRow, _rates: RowRates) -> Text:
    return Text(f"✓ {row.state}", GOOD) if row.healthy else Text(f"! {row.state}", WARN)


def _bad_count(count: int) -> Text:
    return Text(count_text(count), BAD if count else DIM)


def _queue(count: int) -> Text:
    return Text(bytes_text(count), WARN) if count else Text("0", DIM)


def _expiry(row: PeerRow, _rates: RowRates) -> Text:
    left = row.credentials_seconds
    if left is None:
        return Text(NOTHING, DIM)
    if left <= 0:
        return Text("expired", BAD)
    return Text(duration_text(left), WARN if left < CREDENTIALS_WARNING_SECONDS else "")


def _rate(value: float | None) -> Text:
    return Text(rate_text(value), DIM if not value or value < 0.5 else STRONG)


def _connection_state(row: ConnectionRow, _rates: RowRates) -> Text:
    queued = row.queued_up or row.queued_down
    if row.waiting_for:
        return Text(f"waits for {row.waiting_for}", WARN if queued else "")
    return Text(row.state)


def _outcome(row: DialRow, _rates: RowRates) -> Text:
    return Text(f"✓ {row.outcome}", GOOD) if row.succeeded else Text(f"✗ {row.outcome}", BAD)


def _short_reason(row: DialRow) -> str:
    """Returns the reason without what other columns say: with 80 columns its end is not cut."""
    return row.reason.removeprefix(f"dial tcp {row.destination}: ").removeprefix("connect: ")


def _reason(row: DialRow) -> str:
    return ": ".join(filter(None, (row.hop, _short_reason(row))))


def _hop_and_reason(row: DialRow) -> Text:
    return Text.assemble((row.hop, BAD), ": " if row.hop and row.reason else "", _short_reason(row))


def _tried(row: DialRow) -> str:
    others = [each for each in row.tried if each != row.peer]
    return f"{row.peer} (after {', '.join(others)})" if others and row.peer else row.peer or ", ".join(others)


# --- columns


def _texts(title: str, field: str, priority: int, width: int, grows: int = 0, style: str = "") -> TableColumn:
    def value(row: Any, _rates: RowRates) -> str:
        return str(getattr(row, field))

    return TableColumn(
        title, value, lambda row, rates: Text(value(row, rates), style), priority, width, grows
    )


def _numbers(
    title: str,
    field: str,
    show: Callable[[Any], Text | str],
    priority: int,
    width: int,
    server_sort: str = "",
) -> TableColumn:
    """A field of the row, or of its rates: `rates.up`."""
    of_rates, name = field.startswith("rates."), field.removeprefix("rates.")

    def value(row: Any, rates: RowRates) -> Any:
        return getattr(rates if of_rates else row, name)

    return TableColumn(
        title,
        value,
        lambda row, rates: show(value(row, rates)),
        priority,
        width,
        right=True,
        descending=True,
        server_sort=server_sort,
    )


def _server_columns() -> tuple[TableColumn, ...]:
    """Of the servers that an agent dials."""
    return (
        _texts("ADDRESS", "address", 0, 16, grows=2),
        TableColumn("STATE", lambda row, _: (row.healthy, row.state), _state, 0, 11, grows=3),
        _numbers("CONNECTED", "connected_seconds", age_text, 2, 9),
        _numbers("CONNS", "connections", count_text, 1, 5),
        _numbers("UP/s", "rates.up", _rate, 1, 8),
        _numbers("DOWN/s", "rates.down", _rate, 1, 8),
        _numbers("UP", "bytes_up", bytes_text, 6, 8),
        _numbers("DOWN", "bytes_down", bytes_text, 6, 8),
        _texts("SERVER", "id", 5, 12, grows=1),
        _texts("VERSION", "version", 6, 16),
    )


def _agent_columns() -> tuple[TableColumn, ...]:
    return (
        _texts("AGENT", "id", 0, 12, grows=3),
        _texts("NODE", "node", 5, 10, grows=2),
        _texts("ADDRESS", "address", 6, 15, grows=1),
        TableColumn("STATE", lambda row, _: (row.healthy, row.state), _state, 1, 11, grows=1),
        _numbers("CONNECTED", "connected_seconds", age_text, 3, 9),
        _numbers("CONNS", "connections", count_text, 1, 5),
        _numbers("DIALS/s", "rates.dials", per_second_text, 4, 7),
        _numbers("FAILED", "dials_failed", _bad_count, 3, 6),
        _numbers("UP/s", "rates.up", _rate, 1, 8),
        _numbers("DOWN/s", "rates.down", _rate, 1, 8),
        _numbers("QUEUED", "queued_bytes", _queue, 2, 8),
        _numbers("STALLED", "stalled_connections", _bad_count, 4, 7),
        TableColumn("EXPIRES", lambda row, _: row.credentials_seconds, _expiry, 7, 7, right=True),
        _texts("VERSION", "version", 7, 16),
        TableColumn(
            "IDENTIFIERS", lambda row, _: row.identifiers, lambda row, _: " ".join(row.identifiers), 8, 20, 3
        ),
    )


def _connection_columns(title: str) -> tuple[TableColumn, ...]:
    return (
        _texts("DESTINATION", "destination", 0, 18, grows=3),
        _texts(title, "peer", 3, 12, grows=2),
        _texts("CALLER", "caller", 6, 10, grows=1),
        _texts("PROTOCOL", "protocol", 7, 12),
        _texts("STRATEGY", "strategy", 8, 12),
        _numbers("AGE", "age_seconds", age_text, 2, 6, "age"),
        _numbers("UP/s", "rates.up", _rate, 1, 8, "bytes"),
        _numbers("DOWN/s", "rates.down", _rate, 1, 8, "bytes"),
        _numbers("UP", "bytes_up", bytes_text, 6, 8, "bytes"),
        _numbers("DOWN", "bytes_down", bytes_text, 5, 8, "bytes"),
        _numbers("QUEUED", "queued", _queue, 2, 8, "queued"),
        TableColumn("STATE", lambda row, _: (row.waiting_for, row.state), _connection_state, 1, 10, 2),
    )


def _dial_columns(title: str) -> tuple[TableColumn, ...]:
    return (
        # The newest first is the useful order.
        replace(_numbers("AGO", "age_seconds", age_text, 0, 6), descending=False),
        TableColumn("OUTCOME", lambda row, _: (row.succeeded, row.outcome), _outcome, 0, 13),
        _texts("DESTINATION", "destination", 0, 18, grows=2),
        TableColumn(title, lambda row, _: row.peer, lambda row, _: _tried(row), 5, 12, 1),
        _numbers("CONNECT", "connect_seconds", duration_text, 5, 7),
        _texts("STRATEGY", "strategy", 6, 12),
        _texts("CALLER", "caller", 7, 10),
        TableColumn(
            "HOP: REASON",
            lambda row, _: _reason(row),
            lambda row, _: _hop_and_reason(row),
            1,
            16,
            grows=3,
            readable=72,
        ),
    )


_COUNTER_COLUMNS = (
    _texts("METRIC", "name", 0, 24, grows=2),
    _texts("LABELS", "labels", 2, 16, grows=3, style=DIM),
    _numbers("VALUE", "value", lambda value: f"{value:,.6g}", 0, 12),
    TableColumn(
        "PER SECOND",
        lambda row, rates: rates.count if row.is_counter else None,
        lambda row, rates: per_second_text(rates.count) if row.is_counter else "",
        1,
        10,
        right=True,
        descending=True,
    ),
)

_DIAL_FIELDS = ("destination", "caller", "peer", "tried", "outcome", "hop", "reason", "strategy")
_PEER_FIELDS = ("id", "address", "node", "state", "identifiers", "version")
_CONN_FIELDS = ("destination", "peer", "caller", "protocol", "strategy", "state", "waiting_for")


def tables_of(sample: Snapshot) -> tuple[TableSpec, ...]:
    """Returns the tables of this program, in the order of their keys 1, 2, 3, …"""
    peer = sample.peer_name
    if not sample.has_details:
        return (_table("Metrics", _COUNTER_COLUMNS, "counters", "", "no metrics", ("name", "labels")),)
    title = peer.upper()
    dials = _dial_columns(title)
    connections = _connection_columns(title)
    peers = _agent_columns() if peer == "agent" else _server_columns()
    none = f"no {peer} connected"
    return (
        _table(f"{peer.capitalize()}s", peers, "peers", "peers_total", none, _PEER_FIELDS),
        _table(
            "Connections",
            connections,
            "connections",
            "connections_total",
            "no open connections",
            _CONN_FIELDS,
        ),
        _table("Dials", dials, "recent_dials", "", "no dials yet", _DIAL_FIELDS),
        _table("Failures", dials, "recent_failures", "", "no failed dials", _DIAL_FIELDS),
    )


def _table(
    name: str, columns: tuple[TableColumn, ...], rows: str, total: str, empty: str, searched: tuple[str, ...]
) -> TableSpec:
    """`rows` and `total` are fields of a snapshot; without `total`, all rows are there."""

    def rows_of(sample: Snapshot) -> Sequence[Row]:
        found: Sequence[Row] = getattr(sample, rows)
        return found

    def total_of(sample: Snapshot) -> int:
        return int(getattr(sample, total)) if total else len(rows_of(sample))

    return TableSpec(name, columns, rows_of, total_of, empty, searched)
