"""Drives real objects through their tables of close states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bootbridge.ports.close_states import CloseTable, Event, IllegalTransition, State

# What an object goes on to do by itself within the same call.
OWN_EVENTS = (Event.FINISH, Event.FLUSHED, Event.RELEASE)


class Driven:
    """An object in its first state, and how to make each event happen to it."""

    def __init__(
        self, subject: Any, drivers: dict[Event, Callable[[], object]], state: str = "state"
    ) -> None:
        self.subject = subject
        self.drivers = drivers
        self._state = state

    @property
    def state(self) -> State:
        state: State = getattr(self.subject, self._state)
        return state


def paths(table: CloseTable, events: set[Event]) -> dict[State, list[Event]]:
    """The shortest list of events from the first state to each other one."""
    found: dict[State, list[Event]] = {next(iter(table.transitions)): []}
    for state in found_in_order(found):
        for event, following in table.transitions[state].items():
            if event in events and following not in found:
                found[following] = [*found[state], event]
    return found


def found_in_order(found: dict[State, list[Event]]) -> Iterator[State]:
    done = 0
    while done < len(found):
        yield list(found)[done]
        done += 1


def pairs(events: set[Event], table: CloseTable) -> Iterator[tuple[State, Event]]:
    for state in paths(table, events):
        for event in sorted(events):
            yield state, event


def check(driven: Driven, table: CloseTable, state: State, event: Event) -> None:
    """Brings the object into ``state``, then lets ``event`` happen: listed, it leads to the listed state;
    not listed, it is rejected or without effect."""
    for step in paths(table, set(driven.drivers))[state]:
        driven.drivers[step]()
    assert driven.state is state
    following = table.transitions[state].get(event)
    if following is None:
        try:
            driven.drivers[event]()
        except IllegalTransition:
            pass
        assert driven.state is state
        return
    driven.drivers[event]()
    expected = [following]
    for own in OWN_EVENTS:
        expected += [table.transitions[each][own] for each in expected if own in table.transitions[each]]
    assert driven.state in expected
