"""What the drawing shows of each destination: open connections, rates, stalls and the last failure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from bootbridge.status_page import units
from bootbridge.status_page.document import Document, number, rows, text
from bootbridge.status_page.layout import BAD, GOOD, NEUTRAL, WARNING
from bootbridge.status_page.path_drawing import Edge, Node
from bootbridge.status_page.stalls import Rates, connection_key, stalled

Pair = tuple[str, str]


@dataclass(frozen=True)
class DrawnDestination:
    """`agent` is empty on an agent's own page, and where none was found."""

    name: str
    agent: str
    opened: int
    recent_dials: int
    failed: int
    stalled: int
    # None if the document does not list all connections: a part of the rate would be wrong.
    up: float | None
    down: float | None
    last_failure: str

    def node(self, parent: int = 0) -> Node:
        opened = f"{units.integer(self.opened)} open" if self.opened else ""
        recent = units.counted(self.recent_dials, "recent dial") if self.recent_dials else ""
        details = (opened, self.last_failure) if self.failed else (opened or recent,)
        problems = ((self.failed, "failed"), (self.stalled, "stalled"))
        kind = BAD if self.failed else WARNING if self.stalled else GOOD if self.opened else NEUTRAL
        edge = Edge(
            up=self.up if self.opened else None,
            down=self.down if self.opened else None,
            failure=", ".join(f"{units.integer(count)} {what}" for count, what in problems if count),
            kind=kind if self.failed or self.stalled else NEUTRAL,
        )
        return Node(
            self.name, " · ".join(each for each in details if each), kind, edge, parent, "#connections"
        )


def most_urgent(
    status: Document, rates: Rates, failures: list[Document], maximum: int
) -> tuple[list[DrawnDestination], int]:
    """Returns the destinations to draw, problems first, and how many others there are."""
    failed = Counter(map(_pair, failures))
    reasons = {_pair(row): _reason(row) for row in reversed(failures)}  # the newest is the last one set
    listed: Counter[Pair] = Counter()
    held: Counter[Pair] = Counter()
    up: defaultdict[Pair, float] = defaultdict(float)
    down: defaultdict[Pair, float] = defaultdict(float)
    for row in rows(status, "connections"):
        pair = _pair(row)
        listed[pair] += 1
        held[pair] += stalled(row, rates)
        up[pair] += rates.get(connection_key(row, "bytesUp"), 0.0)
        down[pair] += rates.get(connection_key(row, "bytesDown"), 0.0)
    found = []
    for row in rows(status, "destinations"):
        pair, opened = _pair(row), int(number(row, "connections"))
        complete = listed[pair] == opened
        found.append(
            DrawnDestination(
                name=pair[0],
                agent=pair[1],
                opened=opened,
                recent_dials=int(number(row, "recentDials")),
                failed=failed[pair],
                stalled=held[pair],
                up=up[pair] if complete else None,
                down=down[pair] if complete else None,
                last_failure=reasons.get(pair, ""),
            )
        )
    found.sort(key=lambda each: (-bool(each.failed), -bool(each.stalled), -each.opened, -each.recent_dials))
    return found[:maximum], max(0, len(found) - maximum)


def _pair(row: Document) -> Pair:
    return text(row, "destination"), text(row, "agent")


def _reason(row: Document) -> str:
    """Returns the end of a reason such as `dial tcp 10.0.0.1:80: connect: connection refused`."""
    return (text(row, "reason") or text(row, "outcome")).rpartition(": ")[2]
