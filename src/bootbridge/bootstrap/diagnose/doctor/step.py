"""One step of a diagnosis; steps run in order until one is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from bootbridge.bootstrap.diagnose.check.result import CheckResult, CheckVerdict, attempt

VERSION = 1


class Hop(StrEnum):
    """The part of the path that a step tests."""

    APISERVER = "kube-apiserver"
    SOCKET = "socket"
    SERVER = "server"
    CONNECTION = "agent connection"
    AGENT = "agent"
    DESTINATION = "destination"


class StepVerdict(StrEnum):
    """UNKNOWN: it could not be tested. NOT_REACHED: an earlier step is broken."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    NOT_REACHED = "not-reached"


_VERDICTS = {
    CheckVerdict.PASS: StepVerdict.OK,
    CheckVerdict.WARN: StepVerdict.WARNING,
    CheckVerdict.FAIL: StepVerdict.BROKEN,
    CheckVerdict.NOT_RUN: StepVerdict.UNKNOWN,
}


@dataclass(frozen=True)
class DiagnosisStep:
    hop: Hop
    name: str
    verdict: StepVerdict
    evidence: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All steps in order; at most one is broken."""

    steps: tuple[DiagnosisStep, ...]

    @property
    def broken(self) -> DiagnosisStep | None:
        return next((step for step in self.steps if step.verdict is StepVerdict.BROKEN), None)

    def sentence(self) -> str:
        if step := self.broken:
            return f"The first broken hop is the {step.hop} ({step.name}): {step.evidence}"
        unknown = [step.name for step in self.steps if step.verdict is StepVerdict.UNKNOWN]
        untested = f"; not tested: {', '.join(unknown)}" if unknown else ""
        return f"No hop is broken{untested}."

    def document(self) -> dict[str, Any]:
        broken = self.broken
        return {
            "version": VERSION,
            "works": broken is None,
            "broken": asdict(broken) if broken else None,
            "sentence": self.sentence(),
            "steps": [asdict(step) for step in self.steps],
        }


Check = Callable[[], CheckResult]


def run_steps(checks: Iterable[tuple[Hop, str, Check]], report: Callable[[DiagnosisStep], None]) -> Diagnosis:
    """Runs the steps until one is broken; `report` is called with each as soon as it has run."""
    steps: list[DiagnosisStep] = []
    is_broken = False
    for hop, name, check in checks:
        step = DiagnosisStep(hop, name, StepVerdict.NOT_REACHED) if is_broken else _run_step(hop, name, check)
        is_broken = is_broken or step.verdict is StepVerdict.BROKEN
        steps.append(step)
        report(step)
    return Diagnosis(tuple(steps))


def _run_step(hop: Hop, name: str, check: Check) -> DiagnosisStep:
    result = attempt(check)
    return DiagnosisStep(hop, name, _VERDICTS[result.verdict], result.evidence, result.fix)
