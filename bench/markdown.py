"""Prints the table of docs/performance.md and its summary.

    python bench/markdown.py [build/bench.json]

The file is that of a full run, with the samples beside it.
"""

import json
import sys
from pathlib import Path

from report import (
    FAMILIES,
    FLOOR_TARGETS,
    GO,
    GO_TARGETS,
    OUR_AGENT,
    OUR_SERVER,
    OURS,
    Figures,
    Target,
    judged,
    number,
    slower_mixed,
    target_of,
    times,
)

HEAD = ("figure", "unit", "floor", "Go", "ours", "÷ Go", "target", "÷ floor", "target",
        "our server + Go agent", "Go server + our agent")  # fmt: skip


def load(path: Path) -> Figures:
    """Reads the medians' names and units, and every sample."""
    detail = json.loads(path.with_name(f"{path.stem}-detail.json").read_text())
    units = {each["name"]: each["unit"] for each in json.loads(path.read_text())}
    return Figures(units=units, samples=detail["samples"])


def table(figures: Figures) -> list[str]:
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for family in FAMILIES:
        lines += [_row(figures, name) for name in figures.units if name.startswith(f"{family}.")]
    return lines


def _row(figures: Figures, name: str) -> str:
    cells = (
        f"`{name}`",
        figures.units[name],
        number(figures.floor(name), ""),
        number(figures.median(name, GO), ""),
        number(figures.median(name, OURS), ""),
        times(figures.ratio(name), ""),
        _verdict(figures, name, GO_TARGETS),
        times(figures.floor_ratio(name), ""),
        _verdict(figures, name, FLOOR_TARGETS),
        number(figures.median(name, OUR_SERVER), ""),
        number(figures.median(name, OUR_AGENT), ""),
    )
    return f"| {' | '.join(cells)} |"


def _verdict(figures: Figures, name: str, targets: list[Target]) -> str:
    target = target_of(name, targets)
    met = target.met(figures, name) if target else None
    return "" if met is None else f"{target} ✓" if met else f"{target} **missed**"


def summary(figures: Figures) -> str:
    counts = []
    for targets in (GO_TARGETS, FLOOR_TARGETS):
        verdicts = judged(figures, targets)
        counts.append(f"{sum(met for _, _, met in verdicts)} of {len(verdicts)}")
    slower = [
        f"`{name}` ({pair}, {times(figures.ratio(name, pair))})" for name, pair in slower_mixed(figures)
    ]
    return (
        f"{counts[0]} targets relative to Go and {counts[1]} relative to the floor are met; {len(slower)} "
        "figures of the mixed pairs are more than 5 % slower than the Go pair's"
        f"{': ' if slower else ''}{', '.join(slower)}."
    )


if __name__ == "__main__":
    path = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "build" / "bench.json"
    if not path.exists():
        sys.exit(f"bench: {path} not found (make bench writes it)")
    run = load(path)
    print("\n".join(table(run)), "", summary(run), sep="\n")
