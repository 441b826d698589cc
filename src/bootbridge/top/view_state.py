"""What the keys change: table, order, filter, scroll position. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bootbridge.top.fetch import ROWS_MAX, RowQuery
from bootbridge.top.snapshot import Snapshot
from bootbridge.top.tables import TableSpec

FILTER_LENGTH_MAX = 60
# The first table shows the busiest connections below the agents; the others need none.
_OVERVIEW_ROWS, _FEW_ROWS = 200, 1


class InputMode(enum.Enum):
    TABLE = "table"
    FILTER = "filter"  # keys are characters of the filter
    HELP = "help"


@dataclass(frozen=True)
class ViewState:
    table: str = ""  # name; the first one if there is none with this name
    sorts: Mapping[str, tuple[int, bool]] = field(default_factory=dict)  # column, reversed; by table
    filter: str = ""
    filter_before: str = ""  # restored when the input is cancelled
    offset: int = 0
    paused: bool = False
    mode: InputMode = InputMode.TABLE
    ended: bool = False

    def spec(self, tables: Sequence[TableSpec]) -> TableSpec:
        return next((each for each in tables if each.name == self.table), tables[0])

    def order(self, table: TableSpec) -> tuple[int, bool]:
        """Returns the column, -1 for the order of the program, and whether it is reversed."""
        return self.sorts.get(table.name, (-1, False))

    def pressed(self, key: str, tables: Sequence[TableSpec], columns: Sequence[int], page: int) -> ViewState:
        """Returns the state after a key; `columns` are those on the screen, `page` the rows of one page."""
        if key == "ctrl-c":
            return replace(self, ended=True)
        if self.mode is InputMode.FILTER:
            return self._filter_key(key)
        if self.mode is InputMode.HELP:
            return replace(self, mode=InputMode.TABLE, ended=key == "q")
        return self._table_key(key, tables, columns, page)

    def _filter_key(self, key: str) -> ViewState:
        if key == "enter":
            return replace(self, mode=InputMode.TABLE)
        if key == "esc":
            return replace(self, mode=InputMode.TABLE, filter=self.filter_before, offset=0)
        if key == "backspace":
            return replace(self, filter=self.filter[:-1], offset=0)
        if key == "ctrl-u":
            return replace(self, filter="", offset=0)
        if len(key) == 1 and key.isprintable() and len(self.filter) < FILTER_LENGTH_MAX:
            return replace(self, filter=self.filter + key, offset=0)
        return self

    def _table_key(
        self, key: str, tables: Sequence[TableSpec], columns: Sequence[int], page: int
    ) -> ViewState:
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, " ": page}
        if key in moves:
            return replace(self, offset=max(self.offset + moves[key], 0))
        position = list(tables).index(self.spec(tables))
        if key in ("tab", "right", "backtab", "left"):
            step = 1 if key in ("tab", "right") else -1
            return self._showing(tables[(position + step) % len(tables)])
        if key.isdecimal() and 0 < int(key) <= len(tables):
            return self._showing(tables[int(key) - 1])
        match key:
            case "q":
                return replace(self, ended=True)
            case "s" | "S":
                return self._sorted_by_next(tables[position], columns, 1 if key == "s" else -1)
            case "r":
                column, reverse = self.order(tables[position])
                return self._ordered(tables[position], (column, not reverse))
            case "/":
                return replace(self, mode=InputMode.FILTER, filter_before=self.filter)
            case "esc":
                return replace(self, filter="", offset=0)
            case "p":
                return replace(self, paused=not self.paused)
            case "?" | "h":
                return replace(self, mode=InputMode.HELP)
            case "home" | "g":
                return replace(self, offset=0)
            case "end" | "G":
                return replace(self, offset=ROWS_MAX)
        return self

    def _showing(self, table: TableSpec) -> ViewState:
        return replace(self, table=table.name, offset=0)

    def _sorted_by_next(self, table: TableSpec, columns: Sequence[int], step: int) -> ViewState:
        """Goes through the columns on the screen, and the order of the program."""
        choices = [-1, *columns]
        column, _ = self.order(table)
        place = choices.index(column) if column in choices else 0
        return self._ordered(table, (choices[(place + step) % len(choices)], False))

    def _ordered(self, table: TableSpec, order: tuple[int, bool]) -> ViewState:
        return replace(self, sorts={**self.sorts, table.name: order}, offset=0)

    def query(self, sample: Snapshot, tables: Sequence[TableSpec]) -> RowQuery:
        """Returns which rows the next sample needs: only those of the table that is shown.

        The program filters and sorts only if it has more rows than it sends: our own filter compares
        more fields.
        """
        shown = list(tables).index(self.spec(tables))
        incomplete = max(sample.peers_total, sample.connections_total) > ROWS_MAX
        column, _ = self.order(tables[shown])
        if shown == 0:
            return RowQuery(ROWS_MAX, _OVERVIEW_ROWS, self.filter if incomplete else "", "bytes")
        if shown > 1:
            return RowQuery(ROWS_MAX, _FEW_ROWS)
        sort = tables[1].columns[column].server_sort if column >= 0 else ""
        return RowQuery(ROWS_MAX, ROWS_MAX, self.filter if incomplete else "", sort if incomplete else "")
