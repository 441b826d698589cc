"""Makes the lines of a frame from samples, view state and size. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.text import Text

from bootbridge.common.terminal.figures import counted, duration
from bootbridge.top.layout import choose_columns, column_widths, fitted, header_line, row_line, spread
from bootbridge.top.rates import History
from bootbridge.top.snapshot import Row, RowRates, Snapshot
from bootbridge.top.tables import BAD, DIM, GOOD, STRONG, WARN, TableSpec, tables_of, visible_rows
from bootbridge.top.text import bytes_text, count_text, per_second_text
from bootbridge.top.view_state import InputMode, ViewState

WIDTH_MIN, HEIGHT_MIN = 20, 4
_LABEL_COLUMNS = 9
_BARS = "▁▂▃▄▅▆▇█"
_FAILURE_LINES_MAX = 6
_HEADING_LINES = 3  # of a section: a blank line, its title, the names of its columns
_OVERVIEW_HEIGHT_MIN = 12
HELP = (
    ("1 to 4, tab, ← →", "choose a table"),
    ("s, S", "sort by the next or previous column"),
    ("r", "reverse the order"),
    ("/", "filter rows; enter keeps the filter, esc removes it"),
    ("↑ ↓, pgup pgdn, home end", "scroll"),
    ("p", "pause; p again to continue"),
    ("?", "this help; any key closes it"),
    ("q, ctrl-c", "quit"),
)
# In a narrow terminal the last ones are cut; help lists them all.
_FOOTER = (
    ("q", "quit"),
    ("?", "help"),
    ("tab", "table"),
    ("s", "sort"),
    ("r", "reverse"),
    ("/", "filter"),
    ("p", "pause"),
)


@dataclass(frozen=True)
class LinkState:
    """Where the samples come from, and why the last one failed."""

    source: str
    interval_seconds: float
    error: str = ""
    lost_seconds: float = 0.0


@dataclass(frozen=True)
class ScreenFrame:
    lines: list[Text]
    state: ViewState  # with the scroll position inside the rows
    columns: list[int] = field(default_factory=list)  # on the screen, for the sort keys
    page: int = 1  # rows of one page


def frame(history: History, state: ViewState, link: LinkState, width: int, height: int) -> ScreenFrame:
    """Returns exactly `height` lines of at most `width` cells."""
    sample = history.current
    assert sample is not None, "the first sample precedes the first frame"
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        return ScreenFrame(_filled([Text("terminal too small")], width, height), state)
    tables = tables_of(sample)
    head = [*summary(history, link, width), Text()]
    head += [_tab_line(tables, state, sample, width)]
    # A small terminal shows rows rather than the summary's lower lines.
    head = head if len(head) + 3 <= height else [head[0], head[1], head[-1]][: max(height - 3, 0)]
    body_height = height - len(head) - 1
    if state.mode is InputMode.HELP:
        body = _filled(_help_lines(), width, body_height)
        shown = ScreenFrame([], state)
    else:
        body, shown = _table(tables, history, state, bool(link.error), width, body_height)
    lines = [*head, *body, _footer(shown.state, width)]
    return ScreenFrame(_filled(lines, width, height), shown.state, shown.columns, shown.page)


def summary(history: History, link: LinkState, width: int | None) -> list[Text]:
    """Returns the lines above the tables; `width` None cuts nothing."""
    sample = history.current
    assert sample is not None
    lines = [_title(sample, link, width), _health(sample, link), _dials(history), _traffic(history, width)]
    if sample.note:
        lines.append(_labelled("note", Text(sample.note, WARN)))
    if sample.warnings:
        lines.append(_labelled("warning", Text(" · ".join(sample.warnings), WARN)))
    return lines


# --- summary


def _title(sample: Snapshot, link: LinkState, width: int | None) -> Text:
    left = Text.assemble(
        (sample.program, "bold"), f" {sample.version}".rstrip(), (f"  {link.source}", "cyan")
    )
    if sample.identity:
        left.append(f"  {sample.identity}", DIM)
    up = f"up {duration(sample.uptime_seconds)}" if sample.uptime_seconds is not None else ""
    return spread(left, Text(up, DIM), width)


def _health(sample: Snapshot, link: LinkState) -> Text:
    if link.error:
        lost = f"connection lost {duration(link.lost_seconds)} ago, retrying: {link.error}"
        return Text(f"✗ {lost}", BAD)
    if sample.stopping:
        line = Text.assemble(("! stopping", f"{STRONG} {WARN}"))
    elif sample.ready:
        line = Text.assemble(("✓ ready", f"{STRONG} {GOOD}"))
    else:
        line = Text.assemble(("✗ not ready", BAD))
    line.append(f"  {counted(sample.peers_total, sample.peer_name)}")
    line.append(f"  {counted(sample.connections_total, 'connection')}")
    line.append(f"  {counted(sample.pending_dials, 'pending dial')}")
    for fact in sample.facts:
        line.append(f"  {fact}", DIM)
    return line


def _dials(history: History) -> Text:
    sample, rates = history.current, history.rates
    assert sample is not None
    line = Text(f"{per_second_text(rates.dials)}/s  {count_text(sample.dials_succeeded)} succeeded  ")
    failed = sample.dials_failed_total
    line.append(f"{count_text(failed)} failed", BAD if failed else DIM)
    if failed:
        by_count = sorted(sample.dials_failed.items(), key=lambda pair: -pair[1])
        line.append(": " + ", ".join(f"{hop} {count_text(count)}" for hop, count in by_count), BAD)
    if rates.failures:
        line.append(f" ({per_second_text(rates.failures)}/s)", BAD)
    return _labelled("dials", line)


def _traffic(history: History, width: int | None) -> Text:
    sample, rates = history.current, history.rates
    assert sample is not None
    if sample.bytes_up is None and sample.bytes_down is None:
        return _labelled("traffic", Text("not measured by this program", DIM))
    line = Text()
    for name, rate, total in (("up", rates.up, sample.bytes_up), ("down", rates.down, sample.bytes_down)):
        line.append(f"{name} ")
        line.append(f"{bytes_text(rate)}/s", "bold" if rate else DIM)
        line.append(f" ({bytes_text(total)})  ", DIM)
    line.append(f"queued {bytes_text(sample.queued_bytes)}", WARN if sample.queued_bytes else DIM)
    line = _labelled("traffic", line)
    left = (width or 0) - line.cell_len - 2
    if left >= 10 and history.traffic:
        line.append("  " + _graph(list(history.traffic)[-min(left, 60) :]), "cyan")
    return line


def _graph(values: Sequence[float]) -> str:
    top = max(values)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)] for value in values)


def _labelled(label: str, line: Text) -> Text:
    return Text.assemble((f"{label:<{_LABEL_COLUMNS}}", DIM), line)


# --- tables


def _tab_line(tables: Sequence[TableSpec], state: ViewState, sample: Snapshot, width: int) -> Text:
    chosen = state.spec(tables)
    left = Text()
    for number, table in enumerate(tables, 1):
        shown = table.total(sample)
        left.append(f" {number} {table.name} {count_text(shown)} ", "reverse bold" if table is chosen else "")
    right = Text()
    if state.paused:
        right.append(" PAUSED ", "reverse yellow")
    if state.filter or state.mode is InputMode.FILTER:
        right.append(f" filter: {state.filter}", "cyan bold")
    return spread(left, right, width)


def _table(
    tables: Sequence[TableSpec], history: History, state: ViewState, is_old: bool, width: int, height: int
) -> tuple[list[Text], ScreenFrame]:
    table = state.spec(tables)
    column, reverse = state.order(table)
    rows = visible_rows(table, history, column, reverse, state.filter)
    below = _below(tables, history, table, len(rows), width, height)
    room = height - len(below) - 1
    has_position = room > 1 and _is_part(table, history, state, len(rows), room)
    page = max(room - has_position, 1)
    offset = max(min(state.offset, len(rows) - page), 0)
    page_rows = rows[offset : offset + page]
    chosen = choose_columns(table, rows, width)
    widths = column_widths(table, chosen, page_rows, width)
    lines = [header_line(table, chosen, widths, column, reverse)]
    lines += [row_line(table, chosen, widths, row, rates) for row, rates in page_rows]
    if is_old:
        for line in lines[1:]:
            line.stylize(DIM)
    if not rows:
        text = f"no rows match {state.filter!r}" if state.filter else table.empty
        lines.append(Text(text, DIM))
    lines = _filled(lines, width, height - len(below) - has_position)
    if has_position:
        position = _position(table, history, state, offset, len(page_rows), len(rows))
        lines.append(fitted(Text(position, DIM), width))
    lines += below
    return lines, ScreenFrame([], _scrolled(state, offset), chosen, page)


def _is_part(table: TableSpec, history: History, state: ViewState, found: int, room: int) -> bool:
    """Returns whether there are rows that the screen does not show."""
    assert history.current is not None
    is_fetched = bool(state.filter) or found == table.total(history.current)
    return bool(found) and (found > room or not is_fetched)


def _position(
    table: TableSpec, history: History, state: ViewState, offset: int, shown: int, found: int
) -> str:
    """Returns which of the rows are on the screen."""
    assert history.current is not None
    total = table.total(history.current)
    of = f"{found:,}" if found == total or state.filter else f"{found:,} fetched, {total:,} in all"
    return f"{offset + 1:,}–{offset + shown:,} of {of}"


def _scrolled(state: ViewState, offset: int) -> ViewState:
    from dataclasses import replace

    return replace(state, offset=offset)


def _below(
    tables: Sequence[TableSpec], history: History, table: TableSpec, rows: int, width: int, height: int
) -> list[Text]:
    """The first table leaves room for the busiest connections and the last failed dials, if it can."""
    if len(tables) < 4 or table is not tables[0] or height < _OVERVIEW_HEIGHT_MIN:
        return []
    left = height - min(rows + 1, height // 2)
    connections = visible_rows(tables[1], history, -1, False, "")
    connections.sort(key=lambda pair: (-getattr(pair[0], "queued", 0), -pair[1].traffic))
    failures = visible_rows(tables[3], history, -1, False, "")
    count = min(len(failures), left // 3, _FAILURE_LINES_MAX)
    if not connections or left - (count + _HEADING_LINES) <= _HEADING_LINES:
        count = left - _HEADING_LINES  # there is no room for both, or nothing else to show
    below = _section("Last failed dials", tables[3], failures[:count], width)
    rest = max(left - len(below) - _HEADING_LINES, 0)
    return _section("Busiest connections", tables[1], connections[:rest], width) + below


def _section(title: str, table: TableSpec, rows: Sequence[tuple[Row, RowRates]], width: int) -> list[Text]:
    return [Text(), Text(title, STRONG), *table_lines(table, rows, width)] if rows else []


def table_lines(table: TableSpec, rows: Sequence[tuple[Row, RowRates]], width: int | None) -> list[Text]:
    """Returns a whole table with its header; `width` None shows every column uncut."""
    chosen = choose_columns(table, rows, width)
    widths = column_widths(table, chosen, rows, width)
    return [
        header_line(table, chosen, widths),
        *(row_line(table, chosen, widths, row, rates) for row, rates in rows),
    ]


def _help_lines() -> list[Text]:
    return [Text("Keys", "bold"), *(Text.assemble((f"  {keys:<26}", "cyan"), text) for keys, text in HELP)]


def _footer(state: ViewState, width: int) -> Text:
    if state.mode is InputMode.FILTER:
        return Text.assemble(
            ("filter: ", "bold"), (state.filter, "cyan"), ("▏", "cyan"), ("  enter esc", DIM)
        )
    line = Text()
    for key, action in _FOOTER:
        line.append(f" {key} ", "reverse")
        line.append(f" {action}  ")
    return line


def _filled(lines: list[Text], width: int, height: int) -> list[Text]:
    """Returns `height` lines, each cut at `width`."""
    return [fitted(line, width) for line in (lines + [Text()] * height)[:height]]
