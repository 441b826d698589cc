"""Prints the close states of ARCHITECTURE.md, one Mermaid diagram for each table.

python -m tests.tools.state_diagram --write    # replaces the block in ARCHITECTURE.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from bootbridge.ports.close_states import TABLES, CloseTable, State

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
BEGIN, END = "<!-- states: begin -->\n", "<!-- states: end -->\n"


def diagram(table: CloseTable) -> str:
    """Events without effect are left out, and events between the same two states share an arrow."""
    states = list(table.transitions)
    arrows: dict[tuple[State, State], list[str]] = {}
    for state, transitions in table.transitions.items():
        for event, following in transitions.items():
            if following is not state:
                arrows.setdefault((state, following), []).append(event.value)
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {states[0].name}"]
    lines += [f"    {state.name}: {state.value}" for state in states]
    lines += [
        f"    {one.name} --> {other.name}: {', '.join(events)}" for (one, other), events in arrows.items()
    ]
    return f"**{table.kind.capitalize()}**\n\n```mermaid\n" + "\n".join(lines) + "\n```\n"


def block() -> str:
    return "\n".join(diagram(table) for table in TABLES)


def parts(text: str) -> tuple[str, str, str]:
    """Text before the block, the block, and text behind it."""
    before, begin, rest = text.partition(BEGIN)
    inside, end, behind = rest.partition(END)
    assert begin + end == BEGIN + END, "ARCHITECTURE.md has no block of states"
    return before + begin, inside, end + behind


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        before, _, behind = parts(ARCHITECTURE.read_text())
        ARCHITECTURE.write_text(before + block() + behind)
    else:
        print(block(), end="")
