"""Keys change table, order, filter and scroll position."""

from __future__ import annotations

from bootbridge.top.fetch import ROWS_MAX
from bootbridge.top.tables import tables_of
from bootbridge.top.view_state import FILTER_LENGTH_MAX, InputMode, ViewState
from tests.top.documents import server_document, snapshot

SAMPLE = snapshot(server_document())
TABLES = tables_of(SAMPLE)
COLUMNS = [0, 3, 5]


def press(*keys: str, state: ViewState | None = None) -> ViewState:
    found = state or ViewState()
    for key in keys:
        found = found.pressed(key, TABLES, COLUMNS, page=10)
    return found


def shown(*keys: str) -> str:
    return press(*keys).spec(TABLES).name


def test_numbers_and_tab_choose_a_table() -> None:
    assert [shown(), shown("2"), shown("3"), shown("4")] == ["Agents", "Connections", "Dials", "Failures"]
    assert [shown("tab"), shown("backtab"), shown("right", "left"), shown("9")] == [
        "Connections",
        "Failures",
        "Agents",
        "Agents",
    ]


def test_sort_goes_through_the_columns_on_the_screen_and_back_to_the_programs_order() -> None:
    orders = [press(*"s" * count).order(TABLES[0])[0] for count in range(5)]
    assert orders == [-1, 0, 3, 5, -1]
    assert press("S").order(TABLES[0])[0] == 5


def test_each_table_has_its_own_order() -> None:
    state = press("s", "2", "s", "s", "r")
    assert state.order(TABLES[0]) == (0, False)
    assert state.order(TABLES[1]) == (3, True)


def test_a_filter_is_typed_and_kept_or_cancelled() -> None:
    typed = press("/", *"1q", "backspace", *"0s")
    assert (typed.mode, typed.filter) == (InputMode.FILTER, "10s")
    assert press("enter", state=typed).filter == "10s"
    assert press("esc", state=typed).filter == ""
    assert press("enter", "/", "x", "esc", state=typed).filter == "10s"
    assert press("enter", "esc", state=typed).filter == ""
    assert press("ctrl-u", state=typed).filter == ""
    assert len(press("/", *"x" * 1000).filter) == FILTER_LENGTH_MAX
    assert press("/", "up", "unknown", "\x1b").filter == ""


def test_quit_keys_end_it_but_not_inside_a_filter() -> None:
    assert press("q").ended
    assert press("ctrl-c").ended
    assert press("/", "ctrl-c").ended
    assert not press("/", "q").ended


def test_help_ends_with_any_key() -> None:
    assert press("?").mode is InputMode.HELP
    assert press("?", "x").mode is InputMode.TABLE
    assert press("?", "q").ended


def test_scrolling_starts_at_the_first_row() -> None:
    assert press("up").offset == 0
    assert press("down", "down", "pagedown", "pageup", "up").offset == 1
    assert press("end").offset == ROWS_MAX
    assert press("end", "home").offset == 0
    assert press("pagedown", "2").offset == 0


def test_pause_is_switched() -> None:
    assert [press("p").paused, press("p", "p").paused] == [True, False]


def test_only_the_rows_that_are_shown_are_asked_for() -> None:
    def asked(*keys: str, **document: object) -> str:
        sample = snapshot(server_document(**document))
        return str(press(*keys).query(sample, TABLES))

    assert asked() == "agents_limit=1000&connections_limit=200&sort=bytes"
    assert asked("2") == "agents_limit=1000&connections_limit=1000"
    assert asked("3") == "agents_limit=1000&connections_limit=1"


def test_the_program_filters_and_sorts_if_it_has_more_rows_than_it_sends() -> None:
    big = snapshot(server_document() | {"connectionsTotal": 10_000})
    column = next(i for i, column in enumerate(TABLES[1].columns) if column.title == "QUEUED")
    state = press("2", "/", *"10.0&x", "enter").pressed("s", TABLES, [column], page=10)
    assert str(state.query(big, TABLES)) == (
        "agents_limit=1000&connections_limit=1000&filter=10.0%26x&sort=queued"
    )
    assert "filter" not in str(state.query(SAMPLE, TABLES))
