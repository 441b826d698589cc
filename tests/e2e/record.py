"""The suite's own account: each step with each pairing and protocol, and the latency of admissions.

Stories that are told beside each other (tests/e2e/run.py) each write a part; together they are one account.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.lab import ACCOUNTS, STORY, Pairing
from tests.support.process_program import ROOT

DIRECTLY = "directly, by the production kube-apiserver"
_LATENCY_COLUMNS = ("an admission, decided by the webhook", "times", "p50", "p99", "added p50", "added p99")
JSON, MARKDOWN = ROOT / "build" / "e2e.json", ROOT / "build" / "e2e.md"
NEIGHBOURS = "Stories ran beside each other; figures to compare are those of `make e2e E2E=tests/e2e`."


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def neighbours() -> str:
    """What to say of a figure that was measured beside other stories; empty where there were none."""
    return " (other stories ran beside)" if STORY in os.environ else ""


@dataclass
class Record:
    """Filled in by the tests, written once."""

    timings: dict[str, float] = field(default_factory=dict)
    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    latencies: dict[str, dict[str, float]] = field(default_factory=dict)
    load: tuple[float, float] = field(default_factory=lambda: (os.getloadavg()[0], 0.0))
    caption: str = ""

    @classmethod
    def of_parts(cls, documents: Iterable[dict[str, Any]], caption: str) -> Record:
        """One account of several; what happened in more than one of their labs stands there for each."""
        record = cls(caption=caption)
        loads = []
        for document in documents:
            loads.append(document["load"])
            record.latencies |= document["latencies"]
            for title, row in document["steps"].items():
                record.steps.setdefault(title, {}).update(row)
            for what, seconds in document["timings"].items():
                again = f"{what} ({document['part']})" if what in record.timings else what
                record.timings[again] = seconds
        record.load = (min(first for first, _ in loads), max(last for _, last in loads))
        return record

    def step(self, title: str, pairing: Pairing, seconds: float) -> None:
        self.steps.setdefault(title, {})[f"{pairing.name}, {pairing.protocol}"] = seconds

    def latency(self, way: str, seconds: list[float]) -> None:
        self.latencies[way] = {
            "admissions": len(seconds),
            "p50": percentile(seconds, 0.50),
            "p99": percentile(seconds, 0.99),
        }

    def end(self) -> None:
        """The suite has ended: alone it is the whole account, with neighbours a part of it."""
        self.load = (self.load[0], os.getloadavg()[0])
        if part := os.environ.get(STORY):
            self._write(ACCOUNTS / f"{part}.json", part)
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
        return "\n".join(
            [
                f"{machine} {self.caption}".rstrip(),
                "",
                *self._step_table(),
                "",
                *self._latency_table(),
                "",
                *self._timing_table(),
                "",
            ]
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


def forget_parts() -> None:
    for path in ACCOUNTS.glob("*.json"):
        path.unlink()


def put_together() -> None:
    """What the stories have written, as one account."""
    documents = [json.loads(path.read_text()) for path in sorted(ACCOUNTS.glob("*.json"))]
    if documents:
        Record.of_parts(documents, NEIGHBOURS).write()


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
