"""The result of one check, and how checks are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import yaml

from bootbridge.common.yaml_text import YAML_ERRORS
from bootbridge.errors import OperatorError

Subject = TypeVar("Subject")


class CheckVerdict(StrEnum):
    """FAIL: it will not work, or is not safe. WARN: it may be intended. NOT_RUN: nothing to check."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    NOT_RUN = "not-run"


@dataclass(frozen=True)
class CheckResult:
    verdict: CheckVerdict
    evidence: str
    fix: str = ""
    name: str = ""  # of the check; set by `run`


def passed(evidence: str, name: str = "") -> CheckResult:
    return CheckResult(CheckVerdict.PASS, evidence, name=name)


def failed(evidence: str, fix: str, name: str = "") -> CheckResult:
    return CheckResult(CheckVerdict.FAIL, evidence, fix, name)


def warned(evidence: str, fix: str) -> CheckResult:
    return CheckResult(CheckVerdict.WARN, evidence, fix)


def not_run(reason: str, name: str = "") -> CheckResult:
    return CheckResult(CheckVerdict.NOT_RUN, reason, name=name)


def judged(faults: Iterable[str], good: str, fix: str) -> CheckResult:
    """Returns a pass with the evidence `good` if there are no faults, else a failure that lists them."""
    found = list(faults)
    return failed("; ".join(found), fix) if found else passed(good)


def bypassed(egress_config: str) -> CheckResult:
    """Returns the failure of a bootstrap that went on without the tunnel."""
    text = "the tunnel is not used: the server did not answer when bootkube.sh started it, so "
    fix = "fix the server (`crictl logs`, stage konnectivity-server-bootstrap in `journalctl -u bootkube`)"
    return failed(f"{text}{egress_config} routes directly", f"{fix}, then systemctl restart bootkube")


def failed_with(error: OperatorError, name: str = "") -> CheckResult:
    about = f"{error.subject}: " if error.subject else ""
    return failed(about + error.args[0], error.hint, name)


def run(checks: Mapping[str, Callable[[Subject], CheckResult]], subject: Subject) -> list[CheckResult]:
    """Runs all checks in order; an OperatorError in one is that check's failure."""
    return [replace(attempt(partial(check, subject)), name=name) for name, check in checks.items()]


def attempt(check: Callable[[], CheckResult]) -> CheckResult:
    try:
        return check()
    except OperatorError as error:
        return failed_with(error)


def mapping(data: bytes, name: str) -> dict[Any, Any]:
    """Parses a YAML document that must be a mapping; `name` is the subject of errors."""
    try:
        document = yaml.safe_load(data)
    except YAML_ERRORS as error:
        raise OperatorError("invalid YAML", subject=name, hint="render it again") from error
    if not isinstance(document, dict):
        raise OperatorError("not a YAML mapping", subject=name, hint="render it again")
    return document


def at(document: Any, *keys: str | int) -> Any:
    """Returns the value under these keys and indices, or None."""
    for key in keys:
        if isinstance(key, int):
            document = document[key] if isinstance(document, list) and key < len(document) else None
        else:
            document = document.get(key) if isinstance(document, dict) else None
    return document
