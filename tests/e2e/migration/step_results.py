"""What admissions saw during each step of a migration, as JSON and as a table.

`make e2e E2E=tests/e2e/migration` measures, `python -m tests.e2e.migration.step_results --write` writes the
table of that run into docs/migration.md.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.lab.admission_load import AdmissionResult
from tests.support.process_program import ROOT
from tests.tools.generated_section import replaced

JSON, MARKDOWN = ROOT / "build" / "migration.json", ROOT / "build" / "migration.md"
DOCUMENT = ROOT / "docs" / "migration.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"

CUT, NO_SERVER, NO_AGENT, TIMED_OUT, OTHER = (
    "cut during the call",
    "no server",
    "no agent",
    "timed out",
    "another error",
)
# What every replacement of a server causes, until the next one listens and has its agents. Over gRPC the
# kube-apiserver waits for a server, and gives up when the webhook's time is over.
OUTAGE = {"HTTPConnect": {CUT, NO_SERVER, NO_AGENT}, "GRPC": {CUT, NO_SERVER, NO_AGENT, TIMED_OUT}}
# Parts of the kube-apiserver's message. A dial error names the socket; an HTTP 500 is the answer of a server
# without agents, of Konnectivity's as of ours.
_TEXTS = (
    (NO_SERVER, ("dial unix",)),
    (NO_AGENT, ("No agent available", "500 Internal Server Error")),
    (TIMED_OUT, ("deadline exceeded", "Client.Timeout")),
    (CUT, ("EOF", "connection reset", "broken pipe", "closed network connection", "502 Bad Gateway")),
)


def kind_of(message: str) -> str:
    """Returns why a webhook call failed, by the kube-apiserver's message."""
    return next((kind for kind, texts in _TEXTS if any(text in message for text in texts)), OTHER)


@dataclass(frozen=True)
class StepResult:
    """The admissions of one step over one protocol; `changed`: when it was done, and recovery began."""

    step: str
    protocol: str
    results: tuple[AdmissionResult, ...]
    changed: float

    @property
    def rejected(self) -> list[AdmissionResult]:
        return [each for each in self.results if each.rejected]

    @property
    def unexplained(self) -> list[AdmissionResult]:
        """Those of `rejected` that no outage explains: for another reason, or sent when the step was done."""
        outage = OUTAGE[self.protocol]
        return [
            each for each in self.rejected if each.at > self.changed or kind_of(each.message) not in outage
        ]

    @property
    def unanswered(self) -> list[AdmissionResult]:
        """Requests that failed before any webhook was called: the kube-apiserver itself was not available."""
        return [each for each in self.results if not each.decided and not each.rejected]

    @property
    def kinds(self) -> Counter[str]:
        return Counter(kind_of(each.message) for each in self.rejected)

    @property
    def rejected_seconds(self) -> float:
        """The time from the first rejection to the end of the last."""
        if not self.rejected:
            return 0.0
        return max(each.at + each.seconds for each in self.rejected) - min(each.at for each in self.rejected)

    @property
    def longest_seconds(self) -> float:
        """The longest time that an admission took which the webhook decided."""
        return max((each.seconds for each in self.results if each.decided), default=0.0)

    def document(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "protocol": self.protocol,
            "admissions": len(self.results),
            "rejected": len(self.rejected),
            "rejectedSeconds": round(self.rejected_seconds, 1),
            "unanswered": len(self.unanswered),
            "longestSeconds": round(self.longest_seconds, 1),
            "kinds": dict(self.kinds),
            "messages": dict(Counter(each.message for each in (*self.rejected, *self.unanswered))),
        }


@dataclass
class StepResults:
    """Collects the results of all steps; written when the last has ended."""

    steps: list[StepResult] = field(default_factory=list)

    def write(self) -> None:
        JSON.parent.mkdir(parents=True, exist_ok=True)
        documents = [each.document() for each in self.steps]
        JSON.write_text(json.dumps(documents, indent=2, ensure_ascii=False) + "\n")
        MARKDOWN.write_text("\n".join(table(documents)) + "\n")


def table(documents: Iterable[dict[str, Any]]) -> list[str]:
    """Returns one row for each step and protocol."""
    head = ("step", "protocol", "admissions", "rejected", "for", "why", "longest admission")
    lines = [f"| {' | '.join(head)} |", "|---|---|---:|---:|---:|---|---:|"]
    for found in documents:
        why = ", ".join(f"{kind} {count}" for kind, count in found["kinds"].items())
        span = f"{found['rejectedSeconds']:.1f} s" if found["rejected"] else "–"
        cells = (
            found["step"],
            found["protocol"],
            f"{found['admissions']:,}",
            f"{found['rejected']:,}",
            span,
            why or "–",
            f"{found['longestSeconds']:.1f} s",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    DOCUMENT.write_text(replaced(DOCUMENT.read_text(), BEGIN, END, MARKDOWN.read_text()))
