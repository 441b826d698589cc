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
MODES = ("http-connect", "grpc")

FAMILIES = ("bulk", "cpu", "latency", "requests", "connections", "rss", "stall")
HIGHER_IS_BETTER = {"MiB/s", "/s"}
# A mixed pair counts as slower than the Go pair only beyond what noise explains.
NOISE = 0.05


@dataclass(frozen=True)
class Target:
    """What our pair promises: a bound on its ratio to Go, or on its own figure."""

    pattern: str
    bound: float
    at_least: bool
    of_ratio: bool = True

    def met(self, ours: float, ratio: float | None) -> bool | None:
        value = ratio if self.of_ratio else ours
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}{'×' if self.of_ratio else ''}"


TARGETS = [
    Target("bulk.*", 3.0, at_least=True),
    Target("latency.*.1.*", 0.85, at_least=False),
    Target("requests.16.*", 1.2, at_least=True),
    Target("connections.*", 1.3, at_least=True),
    Target("rss.idle.*", 0.7, at_least=False),
    Target("rss.load.*", 0.7, at_least=False),
    Target("cpu.*", 0.45, at_least=False),
    Target("stall.slowdown.*", 1.5, at_least=False, of_ratio=False),
]


def target_of(name: str) -> Target | None:
    return next((target for target in TARGETS if fnmatchcase(name, target.pattern)), None)


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
    print(f"\n{'':34}{'unit':>6}{'direct':>10}{'Go':>10}{'ours':>10}{'ratio':>8}  {'target':<8}{'':8}"
          f"{'our server,':>18}{'Go server,':>18}")  # fmt: skip
    print(f"{'':84}{'':10}{'Go agent':>18}{'our agent':>18}")
    for family in FAMILIES:
        lines = [_line(figures, name) for name in figures.units if name.startswith(f"{family}.")]
        if lines:
            print("\n" + "\n".join(lines))


def _line(figures: Figures, name: str) -> str:
    ours, ratio, target = figures.median(name, OURS), figures.ratio(name), target_of(name)
    bound = str(target) if target else ""
    verdict = _verdict(_judge(figures, name))
    return (
        f"{name:34}{figures.units[name]:>6}"
        f"{_number(figures.median(without_mode(name), DIRECT)):>10}"
        f"{_number(figures.median(name, GO)):>10}{_number(ours):>10}"
        f"{_times(ratio):>8}  {bound:<8}{verdict:8}"
        f"{_mixed(figures, name, OUR_SERVER):>18}{_mixed(figures, name, OUR_AGENT):>18}"
    )


def _verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "MISSED"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}×"


def _mixed(figures: Figures, name: str, pair: str) -> str:
    ratio = figures.ratio(name, pair)
    mark = "!" if mixed_is_slower(figures, name, pair) else ""
    return f"{_number(figures.median(name, pair))} ({_times(ratio)}){mark}" if ratio is not None else "-"


def mixed_is_slower(figures: Figures, name: str, pair: str) -> bool:
    """Memory and CPU are not speed: a mixed pair is judged by what its user waits for."""
    ratio = figures.ratio(name, pair)
    if ratio is None or name.split(".")[0] not in {"bulk", "latency", "requests", "connections"}:
        return False
    if figures.units[name] in HIGHER_IS_BETTER:
        return ratio < 1 - NOISE
    return ratio > 1 + NOISE


def print_summary(figures: Figures) -> None:
    """How far every target is, and every mixed pair that is slower than Go."""
    judged = [(name, _judge(figures, name)) for name in figures.units]
    met = [name for name, verdict in judged if verdict is True]
    missed = [name for name, verdict in judged if verdict is False]
    print(f"\ntargets: {len(met)} met, {len(missed)} missed")
    for name in missed:
        target = target_of(name)
        assert target is not None
        value = figures.ratio(name) if target.of_ratio else figures.median(name, OURS)
        print(f"  missed: {name}: {value:.2f}, target {target}")
    mixed = [(name, pair) for name in figures.units for pair in (OUR_SERVER, OUR_AGENT)]
    slower = [(name, pair) for name, pair in mixed if mixed_is_slower(figures, name, pair)]
    print(f"mixed pairs: {len(slower)} figures more than {NOISE:.0%} slower than the Go pair")
    for name, pair in slower:
        print(f"  slower: {name}: {pair} {figures.ratio(name, pair):.2f}×")
    for title, texts in (("notes", figures.notes), ("failures", figures.failures)):
        if texts:
            print(f"{title}:\n  " + "\n  ".join(dict.fromkeys(texts)))


def _judge(figures: Figures, name: str) -> bool | None:
    target, ours = target_of(name), figures.median(name, OURS)
    return target.met(ours, figures.ratio(name)) if target and ours is not None else None
