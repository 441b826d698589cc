"""Figures by name and pair, the targets, the table and the JSON files."""

import json
import platform
import statistics
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

OURS, GO = "ours", "go"
OUR_SERVER, OUR_AGENT = "our-server+go-agent", "go-server+our-agent"
PAIR_NAMES = (OURS, GO, OUR_SERVER, OUR_AGENT)
DIRECT = "direct"
# HAProxy's pair, see floor.py.
FLOOR = "floor"
MODES = ("http-connect", "grpc")

FAMILIES = ("bulk", "cpu", "latency", "requests", "connections", "rss", "stall")
HIGHER_IS_BETTER = {"MiB/s", "/s"}
# A mixed pair counts as slower than the Go pair only beyond what noise explains.
NOISE = 0.05


@dataclass(frozen=True)
class Target:
    """A bound for our pair: on its ratio to the Go pair or to the floor, or on its own figure."""

    pattern: str
    bound: float
    at_least: bool
    relative_to: str = GO

    def value(self, figures: "Figures", name: str) -> float | None:
        """Returns what the bound applies to, or None where this run did not measure it."""
        if self.relative_to == GO:
            return figures.ratio(name)
        return figures.floor_ratio(name) if self.relative_to == FLOOR else figures.median(name, OURS)

    def met(self, figures: "Figures", name: str) -> bool | None:
        value = self.value(figures, name)
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}{'' if self.relative_to == OURS else '×'}"


GO_TARGETS = [
    Target("bulk.*.http-connect", 2.0, at_least=True),
    Target("bulk.*.grpc", 1.5, at_least=True),
    Target("requests.16.*", 1.2, at_least=True),
    Target("connections.*", 1.2, at_least=True),
    Target("latency.*.1.*", 1.0, at_least=False),
    Target("rss.load.*", 0.7, at_least=False),
    Target("stall.slowdown.*", 1.5, at_least=False, relative_to=OURS),
]
FLOOR_TARGETS = [
    Target("bulk.*", 0.95, at_least=True, relative_to=FLOOR),
    Target("requests.16.*", 0.95, at_least=True, relative_to=FLOOR),
    Target("connections.*", 0.95, at_least=True, relative_to=FLOOR),
    Target("cpu.*", 1.1, at_least=False, relative_to=FLOOR),
    Target("latency.*.1.*", 1.1, at_least=False, relative_to=FLOOR),
]


def target_of(name: str, targets: list[Target]) -> Target | None:
    return next((target for target in targets if fnmatchcase(name, target.pattern)), None)


@dataclass
class Figures:
    """Every sample of a run: by figure, then by pair, one per round."""

    units: dict[str, str] = field(default_factory=dict)
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, unit: str, pair: str, value: float) -> None:
        self.units[name] = unit
        self.add_context(name, pair, value)

    def add_context(self, name: str, pair: str, value: float) -> None:
        """A sample that stands beside a figure and is none itself."""
        self.samples.setdefault(name, {}).setdefault(pair, []).append(value)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(f"    note: {text}", flush=True)

    def fail(self, text: str) -> None:
        self.failures.append(text)
        print(f"    FAILED: {text}", flush=True)

    def median(self, name: str, pair: str) -> float | None:
        values = self.samples.get(name, {}).get(pair)
        return statistics.median(values) if values else None

    def ratio(self, name: str, pair: str = OURS) -> float | None:
        value, go = self.median(name, pair), self.median(name, GO)
        return value / go if value is not None and go else None

    def floor(self, name: str) -> float | None:
        """The floor has one kind of frontend, so its samples are stored without the mode."""
        return self.median(without_mode(name), FLOOR)

    def floor_ratio(self, name: str) -> float | None:
        value, floor = self.median(name, OURS), self.floor(name)
        return value / floor if value is not None and floor else None

    def records(self) -> list[dict[str, Any]]:
        """The published list; null stands for what this run did not measure."""
        return [
            {
                "name": name,
                "unit": unit,
                "ours": _rounded(self.median(name, OURS)),
                "go": _rounded(self.median(name, GO)),
                "mixed": {pair: _rounded(self.median(name, pair)) for pair in (OUR_SERVER, OUR_AGENT)},
                "ratio": _rounded(self.ratio(name)),
                "floor": _rounded(self.floor(name)),
                "floor_ratio": _rounded(self.floor_ratio(name)),
            }
            for name, unit in self.units.items()
        ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def without_mode(name: str) -> str:
    return name.rpartition(".")[0]


def write(figures: Figures, path: Path, settings: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures.records(), indent=1) + "\n")
    detail = {
        "settings": settings,
        "machine": {"kernel": platform.release(), "python": platform.python_version()},
        "samples": figures.samples,
        "notes": figures.notes,
        "failures": figures.failures,
    }
    detail_path = path.with_name(f"{path.stem}-detail.json")
    detail_path.write_text(json.dumps(detail, indent=1) + "\n")
    print(f"\nwritten: {path} (medians), {detail_path} (every sample)")


# --- the table ----------------------------------------------------------------------


def print_table(figures: Figures) -> None:
    ratio = f"{'ratio':>8}  {'target':<16}"
    print(
        f"\n{'':80}{'ours to Go':>10}{'':16}{'ours to floor':>15}{'':13}{'our server,':>16}{'Go server,':>18}"
    )
    print(
        f"{'':34}{'unit':>6}{'direct':>10}{'Go':>10}{'floor':>10}{'ours':>10}{ratio}{ratio}"
        f"{'Go agent':>18}{'our agent':>18}"
    )
    for family in FAMILIES:
        lines = [_line(figures, name) for name in figures.units if name.startswith(f"{family}.")]
        if lines:
            print("\n" + "\n".join(lines))


def _line(figures: Figures, name: str) -> str:
    return (
        f"{name:34}{figures.units[name]:>6}"
        f"{number(figures.median(without_mode(name), DIRECT)):>10}"
        f"{number(figures.median(name, GO)):>10}{number(figures.floor(name)):>10}"
        f"{number(figures.median(name, OURS)):>10}"
        f"{times(figures.ratio(name)):>8}  {_bound(figures, name, GO_TARGETS):<16}"
        f"{times(figures.floor_ratio(name)):>8}  {_bound(figures, name, FLOOR_TARGETS):<16}"
        f"{_mixed(figures, name, OUR_SERVER):>18}{_mixed(figures, name, OUR_AGENT):>18}"
    )


def _bound(figures: Figures, name: str, targets: list[Target]) -> str:
    target = target_of(name, targets)
    return f"{target} {_verdict(target.met(figures, name))}" if target else ""


def _verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "MISSED"


def number(value: float | None, missing: str = "-") -> str:
    if value is None:
        return missing
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(ratio: float | None, missing: str = "-") -> str:
    return missing if ratio is None else f"{ratio:.2f}×"


def _mixed(figures: Figures, name: str, pair: str) -> str:
    ratio = figures.ratio(name, pair)
    mark = "!" if mixed_is_slower(figures, name, pair) else ""
    return f"{number(figures.median(name, pair))} ({times(ratio)}){mark}" if ratio is not None else "-"


def mixed_is_slower(figures: Figures, name: str, pair: str) -> bool:
    """Memory and CPU are not speed: a mixed pair is judged by what its user waits for."""
    ratio = figures.ratio(name, pair)
    if ratio is None or name.split(".")[0] not in {"bulk", "latency", "requests", "connections"}:
        return False
    if figures.units[name] in HIGHER_IS_BETTER:
        return ratio < 1 - NOISE
    return ratio > 1 + NOISE


def judged(figures: Figures, targets: list[Target]) -> list[tuple[str, Target, bool]]:
    """Returns the targets that this run measured, each with its figure and whether it is met."""
    found = [(name, target_of(name, targets)) for name in figures.units]
    return [
        (name, target, met)
        for name, target in found
        if target is not None and (met := target.met(figures, name)) is not None
    ]


def slower_mixed(figures: Figures) -> list[tuple[str, str]]:
    """Returns figures and mixed pairs that are slower than the Go pair."""
    mixed = [(name, pair) for name in figures.units for pair in (OUR_SERVER, OUR_AGENT)]
    return [(name, pair) for name, pair in mixed if mixed_is_slower(figures, name, pair)]


def print_summary(figures: Figures) -> None:
    """How far every target is, and every mixed pair that is slower than Go."""
    for title, targets in (("Go", GO_TARGETS), ("the floor", FLOOR_TARGETS)):
        verdicts = judged(figures, targets)
        missed = [(name, target) for name, target, met in verdicts if not met]
        print(f"\ntargets relative to {title}: {len(verdicts) - len(missed)} met, {len(missed)} missed")
        for name, target in missed:
            print(f"  missed: {name}: {target.value(figures, name):.2f}, target {target}")
    slower = slower_mixed(figures)
    print(f"mixed pairs: {len(slower)} figures more than {NOISE:.0%} slower than the Go pair")
    for name, pair in slower:
        print(f"  slower: {name}: {pair} {figures.ratio(name, pair):.2f}×")
    for title, texts in (("notes", figures.notes), ("failures", figures.failures)):
        if texts:
            print(f"{title}:\n  " + "\n  ".join(dict.fromkeys(texts)))
