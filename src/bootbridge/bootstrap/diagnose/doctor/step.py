"""One step of a walk, and the walk: it goes on until something is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from bootbridge.bootstrap.diagnose.check.finding import Outcome, failed
from bootbridge.bootstrap.diagnose.check.finding import Verdict as Found
from bootbridge.errors import OperatorError

VERSION = 1


class Hop(StrEnum):
    """Where on the way a step is taken."""

    APISERVER = "kube-apiserver"
    SOCKET = "socket"
    SERVER = "server"
    LINK = "agent link"
    AGENT = "agent"
    DESTINATION = "destination"


class Verdict(StrEnum):
    """UNKNOWN: it could not be looked at. NOT_REACHED: something before it is broken."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    NOT_REACHED = "not-reached"


_VERDICTS = {
    Found.PASS: Verdict.OK,
    Found.WARN: Verdict.WARNING,
    Found.FAIL: Verdict.BROKEN,
    Found.NOT_RUN: Verdict.UNKNOWN,
}


@dataclass(frozen=True)
class Step:
    hop: Hop
    name: str
    verdict: Verdict
    evidence: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Examination:
    """All steps in order. At most one is broken: the first that is."""

    steps: tuple[Step, ...]

    @property
    def broken(self) -> Step | None:
        return next((step for step in self.steps if step.verdict is Verdict.BROKEN), None)

    def sentence(self) -> str:
        if step := self.broken:
            return f"The first broken hop is the {step.hop} ({step.name}): {step.evidence}"
        unknown = [step.name for step in self.steps if step.verdict is Verdict.UNKNOWN]
        looked = f"; not looked at: {', '.join(unknown)}" if unknown else ""
        return f"Nothing is broken{looked}."

    def document(self) -> dict[str, Any]:
        broken = self.broken
        return {
            "version": VERSION,
            "works": broken is None,
            "broken": asdict(broken) if broken else None,
            "sentence": self.sentence(),
            "steps": [asdict(step) for step in self.steps],
        }


Check = Callable[[], Outcome]


def walk(checks: Iterable[tuple[Hop, str, Check]], tell: Callable[[Step], None]) -> Examination:
    """Take each step, until one is broken; those behind it are not reached."""
    steps: list[Step] = []
    is_broken = False
    for hop, name, check in checks:
        step = Step(hop, name, Verdict.NOT_REACHED) if is_broken else _taken(hop, name, check)
        is_broken = is_broken or step.verdict is Verdict.BROKEN
        steps.append(step)
        tell(step)
    return Examination(tuple(steps))


def _taken(hop: Hop, name: str, check: Check) -> Step:
    try:
        outcome = check()
    except OperatorError as error:
        about = f"{error.subject}: " if error.subject else ""
        outcome = failed(about + error.args[0], error.hint)
    return Step(hop, name, _VERDICTS[outcome.verdict], outcome.evidence, outcome.fix)
