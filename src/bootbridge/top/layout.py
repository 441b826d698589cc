"""Fits tables into a width: which columns are shown, how wide each is, and the lines themselves."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from bootbridge.top.snapshot import Row, RowRates
from bootbridge.top.tables import TableColumn, TableSpec

GAP = 2
# Columns with this priority or a higher one are left out if all their cells are empty.
_OPTIONAL_PRIORITY = 5
_HEADER = "cyan"
Rows = Sequence[tuple[Row, RowRates]]


def choose_columns(table: TableSpec, rows: Rows, width: int | None) -> list[int]:
    """Returns the columns that fit, in the order of the table.

    The important ones are chosen at their minimum width; the others only if names, addresses and reasons
    are still readable beside them.
    """
    wanted = [i for i, column in enumerate(table.columns) if not _is_empty(column, rows)]
    if width is None:
        return wanted
    chosen: list[int] = []
    used, is_readable = -GAP, False
    for index in sorted(wanted, key=lambda i: table.columns[i].priority):
        column = table.columns[index]
        if column.priority >= _OPTIONAL_PRIORITY and not is_readable:
            used += sum(_readable(table.columns[i], rows) - _minimum(table.columns[i]) for i in chosen)
            is_readable = True
        needed = GAP + (_readable(column, rows) if is_readable else _minimum(column))
        if not chosen or used + needed <= width:
            chosen.append(index)
            used += needed
    return sorted(chosen)


def column_widths(table: TableSpec, chosen: Sequence[int], rows: Rows, width: int | None) -> list[int]:
    """Returns the widths; columns that grow share what is left, none beyond its content."""
    columns = [table.columns[index] for index in chosen]
    content = [
        max([len(column.title), *(cell_len(str(column.cell(row, rates))) for row, rates in rows)])
        for column in columns
    ]
    if width is None:
        return content
    widths = [min(_minimum(column), width) for column in columns]
    left = width - sum(widths) - GAP * (len(widths) - 1)
    while left > 0:
        growing = [i for i, column in enumerate(columns) if column.grows and widths[i] < content[i]]
        shares = sum(columns[i].grows for i in growing)
        if not growing:
            break
        for i in growing:
            more = min(max(left * columns[i].grows // shares, 1), content[i] - widths[i], left)
            widths[i] += more
            left -= more
            shares -= columns[i].grows
            if left <= 0 or shares <= 0:
                break
    return widths


def header_line(
    table: TableSpec, chosen: Sequence[int], widths: Sequence[int], sort: int = -1, reverse: bool = False
) -> Text:
    cells = []
    for index, width in zip(chosen, widths, strict=True):
        column = table.columns[index]
        if index != sort:
            cells.append(fitted(Text(column.title, _HEADER), width, column.right, pad=True))
            continue
        arrow = "↓" if column.descending != reverse else "↑"
        title = Text(f"{column.title[: width - 1]}{arrow}", f"{_HEADER} bold underline")
        cells.append(fitted(title, width, column.right, pad=True))
    return _joined(cells)


def row_line(
    table: TableSpec, chosen: Sequence[int], widths: Sequence[int], row: Row, rates: RowRates
) -> Text:
    return _joined(
        [
            fitted(table.columns[index].cell(row, rates), width, table.columns[index].right, pad=True)
            for index, width in zip(chosen, widths, strict=True)
        ]
    )


def fitted(cell: Text | str, width: int, right: bool = False, *, pad: bool = False) -> Text:
    """Returns the cell cut with `…` at the width, or padded to it."""
    text = cell.copy() if isinstance(cell, Text) else Text(cell)
    text.truncate(max(width, 0), overflow="ellipsis")
    missing = width - text.cell_len
    if pad and missing > 0:
        if right:
            text.pad_left(missing)
        else:
            text.pad_right(missing)
    return text


def spread(left: Text, right: Text, width: int | None) -> Text:
    """Returns both parts, the second at the right edge; the first is cut if there is no room."""
    if not right.cell_len:
        return left
    if width is None:
        return Text.assemble(left, "  ", right)
    room = max(width - right.cell_len - 1, 0)
    return Text.assemble(fitted(left, room, pad=True), " ", right)


def _joined(cells: Sequence[Text]) -> Text:
    line = Text()
    for number, cell in enumerate(cells):
        line.append(" " * GAP if number else "")
        line.append_text(cell)
    line.rstrip()
    return line


def _minimum(column: TableColumn) -> int:
    # The arrow of the sorted column needs one more.
    return max(column.width, len(column.title) + 1)


def _readable(column: TableColumn, rows: Rows) -> int:
    """Returns the width at which most of a growing column's content is not cut."""
    if not column.grows:
        return _minimum(column)
    content = max((cell_len(str(column.cell(row, rates))) for row, rates in rows), default=0)
    return max(_minimum(column), min(content, column.readable))


def _is_empty(column: TableColumn, rows: Rows) -> bool:
    if column.priority < _OPTIONAL_PRIORITY or not rows:
        return False
    return not any(str(column.cell(row, rates)).strip("– ") for row, rates in rows)
