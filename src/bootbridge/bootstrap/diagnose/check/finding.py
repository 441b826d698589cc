"""What a check found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import yaml

from bootbridge.errors import OperatorError

Subject = TypeVar("Subject")


class Verdict(StrEnum):
    """FAIL: it will not work, or is not safe. WARN: it may be meant so. NOT_RUN: nothing to look at."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    NOT_RUN = "not-run"


@dataclass(frozen=True)
class Outcome:
    """What one check has to say."""

    verdict: Verdict
    evidence: str
    fix: str = ""


@dataclass(frozen=True)
class Finding:
    """The same with the check's name."""

    name: str
    verdict: Verdict
    evidence: str
    fix: str = ""


def passed(evidence: str) -> Outcome:
    return Outcome(Verdict.PASS, evidence)


def failed(evidence: str, fix: str) -> Outcome:
    return Outcome(Verdict.FAIL, evidence, fix)


def warned(evidence: str, fix: str) -> Outcome:
    return Outcome(Verdict.WARN, evidence, fix)


def not_run(reason: str) -> Outcome:
    return Outcome(Verdict.NOT_RUN, reason)


def judged(faults: Iterable[str], good: str, fix: str) -> Outcome:
    """Passed with `good` if there are no faults."""
    found = list(faults)
    return failed("; ".join(found), fix) if found else passed(good)


def named(name: str, outcome: Outcome) -> Finding:
    return Finding(name, outcome.verdict, outcome.evidence, outcome.fix)


def run(checks: Mapping[str, Callable[[Subject], Outcome]], subject: Subject) -> list[Finding]:
    """All checks, one after the other; a refusal on the way is that check's failure."""
    return [named(name, _outcome(check, subject)) for name, check in checks.items()]


def _outcome(check: Callable[[Subject], Outcome], subject: Subject) -> Outcome:
    try:
        return check(subject)
    except OperatorError as error:
        about = f"{error.subject}: " if error.subject else ""
        return failed(about + error.args[0], error.hint)


def mapping(data: bytes, name: str) -> dict[Any, Any]:
    """A YAML document that is a mapping; `name` is what the failure calls it."""
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise OperatorError("is no YAML", subject=name, hint="render it anew") from error
    if not isinstance(document, dict):
        raise OperatorError("holds no mapping", subject=name, hint="render it anew")
    return document


def at(document: Any, *keys: str | int) -> Any:
    """What lies under these keys and indices, or None."""
    for key in keys:
        if isinstance(key, int):
            document = document[key] if isinstance(document, list) and key < len(document) else None
        else:
            document = document.get(key) if isinstance(document, dict) else None
    return document
