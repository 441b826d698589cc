"""The results of the end-to-end suite: step times per pairing and protocol, and admission latencies.

Scenarios that run beside each other (tests/e2e/run.py) write one file each; `merge_parts` joins them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.lab import RESULTS, SCENARIO, Pairing
from tests.support.process_program import ROOT

DIRECTLY = "directly, by the permanent kube-apiserver"
_LATENCY_COLUMNS = ("an admission, decided by the webhook", "times", "p50", "p99", "added p50", "added p99")
JSON, MARKDOWN = ROOT / "build" / "e2e.json", ROOT / "build" / "e2e.md"
CONCURRENT = "Scenarios ran concurrently; for comparable figures run `make e2e E2E=tests/e2e`."


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def concurrency_note() -> str:
    """Returns a note for figures that were measured beside other scenarios, else an empty string."""
    return " (other scenarios ran concurrently)" if SCENARIO in os.environ else ""


@dataclass
class Results:
    """Collects what the tests measure; written once, at the end."""

    timings: dict[str, float] = field(default_factory=dict)
    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    latencies: dict[str, dict[str, float]] = field(default_factory=dict)
    load: tuple[float, float] = field(default_factory=lambda: (os.getloadavg()[0], 0.0))
    caption: str = ""

    @classmethod
    def of_parts(cls, documents: Iterable[dict[str, Any]], caption: str) -> Results:
        """Merges the results of several scenarios; a timing that several have is listed once per scenario."""
        results = cls(caption=caption)
        loads = []
        for document in documents:
            loads.append(document["load"])
            results.latencies |= document["latencies"]
            for title, row in document["steps"].items():
                results.steps.setdefault(title, {}).update(row)
            for what, seconds in document["timings"].items():
                name = f"{what} ({document['part']})" if what in results.timings else what
                results.timings[name] = seconds
        results.load = (min(first for first, _ in loads), max(last for _, last in loads))
        return results

    def add_step(self, title: str, pairing: Pairing, seconds: float) -> None:
        self.steps.setdefault(title, {})[f"{pairing.name}, {pairing.protocol}"] = seconds

    def add_latency(self, path: str, seconds: list[float]) -> None:
        self.latencies[path] = {
            "admissions": len(seconds),
            "p50": percentile(seconds, 0.50),
            "p99": percentile(seconds, 0.99),
        }

    def save(self) -> None:
        """Writes the whole result, or this scenario's part of it."""
        self.load = (self.load[0], os.getloadavg()[0])
        if part := os.environ.get(SCENARIO):
            self._write(RESULTS / f"{part}.json", part)
        else:
            self.write()

    def write(self) -> None:
        self._write(JSON)
        MARKDOWN.write_text(self.tables())

    def _write(self, path: Path, part: str = "") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.document(part), indent=2, ensure_ascii=False) + "\n")

    def document(self, part: str = "") -> dict[str, Any]:
        return {
            **({"part": part} if part else {}),
            "cores": os.cpu_count(),
            "load": self.load,
            "timings": self.timings,
            "steps": self.steps,
            "latencies": self.latencies,
        }

    def tables(self) -> str:
        before, after = self.load
        machine = f"{os.cpu_count()} cores; load {before:.1f} at the start, {after:.1f} at the end."
        tables = (self._step_table(), self._latency_table(), self._timing_table())
        return "\n".join(
            [f"{machine} {self.caption}".rstrip(), "", *(line for table in tables for line in (*table, ""))]
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
        for path, found in self.latencies.items():
            cells = [_milliseconds(found[share]) for share in ("p50", "p99")]
            if direct := self.latencies.get(DIRECTLY):
                cells += [_milliseconds(found[share] - direct[share]) for share in ("p50", "p99")]
            lines.append(f"| {path} | {found['admissions']:,.0f} | {' | '.join(cells)} |")
        return lines

    def _timing_table(self) -> list[str]:
        lines = ["| the lab and the tunnel | time |", "|---|---:|"]
        return lines + [f"| {what} | {seconds:.1f} s |" for what, seconds in self.timings.items()]


def remove_parts() -> None:
    for path in RESULTS.glob("*.json"):
        path.unlink()


def merge_parts() -> None:
    """Writes the results of all scenarios as one."""
    documents = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    if documents:
        Results.of_parts(documents, CONCURRENT).write()


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
