"""The suite's own account: each step with each pairing and protocol, and the latency of admissions."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from tests.support.lab import Pairing
from tests.support.process_program import ROOT

DIRECTLY = "directly, by the production kube-apiserver"
_LATENCY_COLUMNS = ("an admission, decided by the webhook", "times", "p50", "p99", "added p50", "added p99")
JSON, MARKDOWN = ROOT / "build" / "e2e.json", ROOT / "build" / "e2e.md"


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class Record:
    """Filled in by the tests, written once."""

    timings: dict[str, float] = field(default_factory=dict)
    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    latencies: dict[str, dict[str, float]] = field(default_factory=dict)
    load_at_start: float = field(default_factory=lambda: os.getloadavg()[0])

    def step(self, title: str, pairing: Pairing, seconds: float) -> None:
        self.steps.setdefault(title, {})[f"{pairing.name}, {pairing.protocol}"] = seconds

    def latency(self, way: str, seconds: list[float]) -> None:
        self.latencies[way] = {
            "admissions": len(seconds),
            "p50": percentile(seconds, 0.50),
            "p99": percentile(seconds, 0.99),
        }

    def write(self) -> None:
        JSON.parent.mkdir(exist_ok=True)
        JSON.write_text(json.dumps(self.document(), indent=2, ensure_ascii=False) + "\n")
        MARKDOWN.write_text(self.tables())

    def document(self) -> dict[str, Any]:
        return {
            "cores": os.cpu_count(),
            "load": [self.load_at_start, os.getloadavg()[0]],
            "timings": self.timings,
            "steps": self.steps,
            "latencies": self.latencies,
        }

    def tables(self) -> str:
        before, after = self.load_at_start, os.getloadavg()[0]
        machine = f"{os.cpu_count()} cores; load {before:.1f} at the start, {after:.1f} at the end.\n"
        return "\n".join(
            [machine, *self._step_table(), "", *self._latency_table(), "", *self._timing_table(), ""]
        )

    def _step_table(self) -> list[str]:
        columns = list(dict.fromkeys(column for row in self.steps.values() for column in row))
        lines = [f"| step | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
        for title, row in self.steps.items():
            cells = [f"{row[column]:.1f} s" if column in row else "–" for column in columns]
            lines.append(f"| {title.rstrip('.')} | {' | '.join(cells)} |")
        return lines

    def _latency_table(self) -> list[str]:
        lines = [f"| {' | '.join(_LATENCY_COLUMNS)} |", f"|---|{'---:|' * (len(_LATENCY_COLUMNS) - 1)}"]
        for way, found in self.latencies.items():
            cells = [_milliseconds(found[share]) for share in ("p50", "p99")]
            if direct := self.latencies.get(DIRECTLY):
                cells += [_milliseconds(found[share] - direct[share]) for share in ("p50", "p99")]
            lines.append(f"| {way} | {found['admissions']:,.0f} | {' | '.join(cells)} |")
        return lines

    def _timing_table(self) -> list[str]:
        lines = ["| the lab and the bridge | took |", "|---|---:|"]
        return lines + [f"| {what} | {seconds:.1f} s |" for what, seconds in self.timings.items()]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
