"""A frame has exactly the size of the terminal and shows what matters first."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from bootbridge.top.metrics_page import parse_metrics
from bootbridge.top.rates import History
from bootbridge.top.tables import tables_of, visible_rows
from bootbridge.top.view import LinkState, ScreenFrame, frame
from bootbridge.top.view_state import InputMode, ViewState
from tests.top.documents import (
    HOSTILE,
    agent,
    agent_document,
    connection,
    failed_dial,
    history,
    server_document,
    snapshot,
)
from tests.top.test_metrics_page import GO_SERVER

LINK = LinkState("http://127.0.0.1:8095", 1.0)
WIDTHS = [20, 40, 60, 80, 120, 200, 400]
HEIGHTS = [4, 6, 10, 24, 60]
TABLES_OF_A_SERVER = tables_of(snapshot(server_document()))
TABLES = ["Agents", "Connections", "Dials", "Failures"]


def busy() -> History:
    """Many rows, wide characters, and hostile texts."""
    ids = [f"agent-{number}" for number in range(50)] + ["漢字" * 30, HOSTILE, "x" * 400, ""]
    rows = {"agents": [agent(1, id=each, address=each) for each in ids], "agentsTotal": 5000}
    rows["recentFailures"] = [failed_dial(number % 60, reason="漢" * 200) for number in range(40)]
    return history(server_document(connections=200) | rows, server_document(connections=200) | rows)


def text(shown: ScreenFrame) -> str:
    return "\n".join(line.plain for line in shown.lines)


@pytest.mark.parametrize("height", HEIGHTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_frame_fits_every_terminal(width: int, height: int) -> None:
    for table in TABLES:
        for mode in InputMode:
            state = ViewState(table=table, mode=mode, filter="", offset=10_000)
            shown = frame(busy(), state, LINK, width, height)
            assert len(shown.lines) == height
            assert max(line.cell_len for line in shown.lines) <= width
            assert all(line.plain.isprintable() for line in shown.lines)


@pytest.mark.parametrize("size", [(1, 1), (0, 0), (19, 50), (200, 3)])
def test_a_terminal_that_is_too_small_says_so(size: tuple[int, int]) -> None:
    shown = frame(busy(), ViewState(), LINK, *size)
    assert len(shown.lines) == size[1]
    assert "terminal too small".startswith(shown.lines[0].plain.rstrip("…") if shown.lines else "")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_health_and_the_most_important_columns_are_always_there(width: int) -> None:
    shown = text(frame(history(server_document()), ViewState(), LINK, width, 40))
    for expected in (
        "✓ ready  3 agents  5 connections  0 pending",
        "10 succeeded  2 failed: agent to endpoint",
    ):
        assert expected in shown
    for title in ("AGENT", "STATE", "CONNS", "UP/s", "DOWN/s", "Busiest connections", "Last failed dials"):
        assert title in shown


def test_wider_terminals_show_more_columns() -> None:
    counts = [len(frame(busy(), ViewState(), LINK, width, 40).columns) for width in (60, 80, 120, 200, 300)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert counts[-1] == len(TABLES_OF_A_SERVER[0].columns)


def test_rates_are_in_the_rows_and_in_the_summary() -> None:
    second = server_document(bytes={"toAgent": 11_000, "toFrontend": 2_000}) | {
        "agents": [agent(1, bytesFromAgent=2000 + 5_000_000)]
    }
    shown = text(frame(history(server_document(agents=1), second), ViewState(), LINK, 120, 24))
    assert "up 9.8 KiB/s (11 KiB)" in shown
    assert "4.8 MiB" in shown


def test_a_lost_connection_is_named_and_the_last_rows_stay() -> None:
    link = replace(LINK, error="http://127.0.0.1:8095: connection refused", lost_seconds=12.0)
    shown = text(frame(history(server_document()), ViewState(), link, 120, 24))
    assert "✗ connection lost 12 s ago, retrying: http://127.0.0.1:8095: connection refused" in shown
    assert "agent-1" in shown
    assert "✓ ready" not in shown


def test_a_server_that_is_not_ready_says_so() -> None:
    shown = text(frame(history(server_document(agents=0, ready=False)), ViewState(), LINK, 80, 24))
    assert "✗ not ready  0 agents" in shown
    assert "warning  no agent connected" in shown


def test_a_connection_that_waits_is_the_first_of_the_busiest() -> None:
    document = server_document() | {"connections": [connection(1), connection(2, queuedDown=70_000)]}
    document["connections"][1]["waitingFor"] = "caller to read"
    lines = [line.plain for line in frame(history(document), ViewState(), LINK, 120, 40).lines]
    first = lines[lines.index("Busiest connections") + 2]
    assert first.startswith("10.0.0.2:8443")
    assert "68 KiB  waits for caller to read" in first


def test_a_narrow_terminal_shows_that_a_connection_waits() -> None:
    """Before its age and its queue: these do not say whether it is stuck."""
    document = server_document() | {"connections": [connection(1, waitingFor="caller to read")]}
    shown = text(frame(history(document), ViewState(table="Connections"), LINK, 60, 20))
    assert "waits for" in shown


def test_the_sorted_column_has_an_arrow_and_decides_the_order() -> None:
    titles = [column.title for column in TABLES_OF_A_SERVER[0].columns]
    state = ViewState(sorts={"Agents": (titles.index("CONNS"), False)})
    shown = text(frame(history(server_document()), state, LINK, 120, 24))
    assert "CONNS↓" in shown
    assert shown.index("agent-3") < shown.index("agent-2") < shown.index("agent-1 ")
    reverse = ViewState(sorts={"Agents": (titles.index("CONNS"), True)})
    shown = text(frame(history(server_document()), reverse, LINK, 120, 24))
    assert "CONNS↑" in shown
    assert shown.index("agent-1 ") < shown.index("agent-3")


def test_every_column_sorts_unknown_values_too() -> None:
    """Rows of another version miss fields."""
    rows = {"agents": [agent(1), {}, agent(2)], "connections": [connection(1), {}], "recentDials": [{}]}
    found = history(server_document() | rows, server_document() | rows)
    assert found.current is not None
    for table in tables_of(found.current):
        for column in range(len(table.columns)):
            assert len(visible_rows(table, found, column, False, "")) == len(table.rows(found.current))


@pytest.mark.parametrize("wanted", ["worker-2", "WORKER-2", "10.0.2.0/24", "192.0.2.2:"])
def test_a_filter_compares_every_name_of_an_agent(wanted: str) -> None:
    shown = text(frame(history(server_document()), ViewState(filter=wanted), LINK, 120, 10))
    assert "agent-2" in shown
    assert "agent-3" not in shown


def test_a_filter_without_rows_says_so() -> None:
    shown = text(frame(history(server_document()), ViewState(filter="nowhere"), LINK, 80, 24))
    assert "no rows match 'nowhere'" in shown
    assert "filter: nowhere" in shown


def test_scrolling_ends_at_the_last_page() -> None:
    state = ViewState(table="Connections", offset=10_000)
    shown = frame(history(server_document(connections=100)), state, LINK, 120, 30)
    assert shown.state.offset == 100 - shown.page
    assert f"{101 - shown.page}–100 of 100" in text(shown)
    assert "10.0.0.100:8443" in text(shown)


def test_rows_that_were_not_sent_are_counted() -> None:
    document = server_document(connections=100) | {"connectionsTotal": 10_000}
    shown = text(frame(history(document), ViewState(table="Connections"), LINK, 120, 30))
    lines = shown.splitlines()
    assert any("of 100 fetched, 10,000 in all" in line for line in lines)
    assert any("QUEUED" in line and "STATE" in line for line in lines), "the number hides no title"
    assert "2 Connections 10,000" in shown


def test_an_agent_shows_its_servers() -> None:
    shown = text(frame(history(agent_document()), ViewState(), LINK, 120, 24))
    assert "proxy-agent 0.1.0" in shown
    assert "1 Servers 1" in shown
    assert "192.0.2.1:8091" in shown


def test_a_go_program_shows_its_metrics_and_why() -> None:
    found = History()
    for taken in (0.0, 2.0):
        sample = parse_metrics(GO_SERVER.replace("_count 7", f"_count {7 + taken:.0f}"), taken=taken)
        assert sample is not None
        found.add(sample)
    shown = text(frame(found, ViewState(table="Connections"), LINK, 120, 30))
    assert "no /status (a Go program?)" in shown
    assert "1 Metrics" in shown
    assert "not measured by this program" in shown
    assert [line.split() for line in shown.splitlines() if line.startswith("dial_duration")] == [
        ["dial_duration_seconds_count", "9", "1.0"]
    ]


def test_help_names_every_key_of_the_footer() -> None:
    shown = text(frame(history(server_document()), ViewState(mode=InputMode.HELP), LINK, 80, 24))
    for line in ("choose a table", "filter rows", "reverse the order", "quit"):
        assert line in shown


def test_the_end_of_a_dials_reason_is_shown_on_a_narrow_terminal() -> None:
    """The part that says what is wrong; the destination has a column of its own."""
    destination = "10.128.6.20:9443"
    reason = f"dial tcp {destination}: connect: connection refused"
    document = server_document() | {
        "recentFailures": [failed_dial(1, destination=destination, reason=reason)]
    }
    shown = text(frame(history(document), ViewState(table="Failures"), LINK, 80, 24))
    assert "agent to endpoint: connection refused" in shown


@pytest.mark.parametrize(("agents", "size"), [(3, (60, 20)), (7, (100, 24)), (9, (80, 24)), (3, (80, 24))])
def test_the_overview_uses_its_lines(agents: int, size: tuple[int, int]) -> None:
    """A second section that has no room leaves its lines to the first one."""
    failures = [failed_dial(number) for number in range(20)]
    document = server_document(agents=agents) | {"recentFailures": failures}
    lines = [line.plain for line in frame(history(document), ViewState(), LINK, *size).lines]
    assert len(lines) == size[1]
    assert [pair for pair in pairwise(lines) if not any(pair)] == []
    assert "Last failed dials" in lines


def test_help_stays_in_the_footer_of_a_narrow_terminal() -> None:
    assert " ?  help" in frame(history(server_document()), ViewState(), LINK, 30, 24).lines[-1].plain
