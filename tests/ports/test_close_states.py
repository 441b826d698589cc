"""The tables of close states: every pair of state and event, and the diagrams in ARCHITECTURE.md."""

from __future__ import annotations

import pytest

from bootbridge.ports.close_states import TABLES, CloseTable, Event, IllegalTransition, State
from tests.tools import state_diagram

PAIRS = [(table, state, event) for table in TABLES for state in table.transitions for event in Event]


def reachable(table: CloseTable, start: State) -> set[State]:
    found, waiting = {start}, [start]
    while waiting:
        new = set(table.transitions[waiting.pop()].values()) - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize(("table", "state", "event"), PAIRS, ids=lambda part: getattr(part, "kind", part))
def test_a_pair_leads_to_the_listed_state_or_is_rejected(
    table: CloseTable, state: State, event: Event
) -> None:
    following = table.transitions[state].get(event)
    if following is not None:
        assert table.after(state, event) is following
    else:
        with pytest.raises(IllegalTransition, match=table.kind):
            table.after(state, event)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_every_state_can_be_reached_and_every_state_can_close(table: CloseTable) -> None:
    """And a closed object stays closed."""
    first = next(iter(table.transitions))
    assert reachable(table, first) == set(table.transitions)
    assert all(State.CLOSED in reachable(table, state) for state in table.transitions)
    assert reachable(table, State.CLOSED) == {State.CLOSED}


def test_architecture_shows_the_tables() -> None:
    """To update it: python -m tests.tools.state_diagram --write."""
    _, shown, _ = state_diagram.parts(state_diagram.ARCHITECTURE.read_text())
    assert shown == state_diagram.block()
