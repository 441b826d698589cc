"""Which connections of the document are stalled, and how many of each agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping

from bootbridge.common.stalled_connection import is_stalled
from bootbridge.status_page.document import Document, number, rows, text

DIRECTIONS = ("bytesUp", "bytesDown")

Rates = Mapping[Hashable, float]


def connection_key(connection: Document, direction: str) -> Hashable:
    return ("connection", connection.get("id"), text(connection, "server"), direction)


def connection_totals(status: Document) -> Iterator[tuple[Hashable, float]]:
    """Yields the counters of the connections in the document."""
    for row in rows(status, "connections"):
        for direction in DIRECTIONS:
            yield connection_key(row, direction), number(row, direction)


def stalled(connection: Document, rates: Rates) -> bool:
    up, down = (rates.get(connection_key(connection, direction)) for direction in DIRECTIONS)
    return is_stalled(text(connection, "waitingFor"), number(connection, "queuedUp"), up, down)


def stalled_by_agent(status: Document, rates: Rates) -> Counter[str]:
    """Counts the stalled connections in the document by agent id."""
    return Counter(text(row, "agent") for row in rows(status, "connections") if stalled(row, rates))


def stalled_of(agent: Document, by_agent: Counter[str]) -> int:
    """Returns an agent's stalled connections.

    The server counts one after 5 s, and of all connections; the document shows it at once, but lists a part.
    """
    return max(int(number(agent, "stalledConnections")), by_agent[text(agent, "id")])
