"""Prints the table of docs/performance.md, and its summary, from the last full run of the benchmark.

python bench/markdown.py [build/bench.json]
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
    mixed_is_slower,
    target_of,
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
        _number(figures.floor(name)),
        _number(figures.median(name, GO)),
        _number(figures.median(name, OURS)),
        _times(figures.ratio(name)),
        _verdict(figures, name, GO_TARGETS),
        _times(figures.floor_ratio(name)),
        _verdict(figures, name, FLOOR_TARGETS),
        _number(figures.median(name, OUR_SERVER)),
        _number(figures.median(name, OUR_AGENT)),
    )
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}×"


def _verdict(figures: Figures, name: str, targets: list[Target]) -> str:
    target = target_of(name, targets)
    met = target.met(figures, name) if target else None
    return "" if met is None else f"{target} ✓" if met else f"{target} **missed**"


def summary(figures: Figures) -> str:
    counts = []
    for targets in (GO_TARGETS, FLOOR_TARGETS):
        verdicts = [
            target.met(figures, name) for name in figures.units if (target := target_of(name, targets))
        ]
        judged = [met for met in verdicts if met is not None]
        counts.append(f"{sum(judged)} of {len(judged)}")
    slower = [
        f"`{name}` ({pair}, {_times(figures.ratio(name, pair))})"
        for name in figures.units
        for pair in (OUR_SERVER, OUR_AGENT)
        if mixed_is_slower(figures, name, pair)
    ]
    return (
        f"{counts[0]} targets relative to Go and {counts[1]} relative to the floor are met; {len(slower)} "
        "figures of the mixed pairs are more than 5 % slower than the Go pair's"
        f"{': ' if slower else ''}{', '.join(slower)}."
    )


if __name__ == "__main__":
    run = load(Path(sys.argv[1] if sys.argv[1:] else "build/bench.json"))
    print("\n".join(table(run)), "", summary(run), sep="\n")
