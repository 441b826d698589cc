"""Which connections `top` shows as stalled."""

from __future__ import annotations

from typing import Any

from bootbridge.top.rates import History
from tests.top.documents import agent, connection, history, server_document

WAITING = {"agent": "agent-1", "queuedDown": 70_000, "waitingFor": "caller to read"}


def two_samples(before: dict[str, Any], after: dict[str, Any], **agent_fields: Any) -> History:
    documents = [
        server_document() | {"agents": [agent(1, **agent_fields)], "connections": [connection(1, **fields)]}
        for fields in (before, after)
    ]
    return history(*documents)


def stalls(found: History) -> tuple[int, tuple[str, ...]]:
    assert found.current is not None
    return found.current.peers[0].stalled_connections, found.current.warnings


def test_a_connection_that_waits_and_transfers_nothing_is_stalled() -> None:
    assert stalls(two_samples(WAITING, WAITING)) == (1, ("1 stalled connection",))


def test_a_fast_transfer_with_a_queue_is_not() -> None:
    assert stalls(two_samples(WAITING, WAITING | {"bytesDown": 90_000})) == (0, ())


def test_the_programs_own_count_includes_connections_that_are_not_listed() -> None:
    assert stalls(two_samples(WAITING, WAITING, stalledConnections=7)) == (7, ("7 stalled connections",))


def test_one_sample_shows_the_programs_own_count() -> None:
    only = server_document() | {
        "agents": [agent(1, stalledConnections=2)],
        "connections": [connection(1, **WAITING)],
    }
    assert stalls(history(only)) == (2, ("2 stalled connections",))
