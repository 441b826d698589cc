"""Runs actions through the platform's own CLI, bounded in time; what was done before is no failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bootbridge.bootstrap.firewall.json_query import find
from bootbridge.bootstrap.firewall.model import PLACEHOLDER, FirewallAction, Lookup, Then
from bootbridge.errors import OperatorError

COMMAND_SECONDS = 120.0
_DETAIL_CHARACTERS = 500
Values = dict[str, list[str]]


class ActionOutcome(StrEnum):
    DONE = "done"
    ALREADY = "already"
    FAILED = "failed"


@dataclass(frozen=True)
class ActionResult:
    """How an action went; `detail` says why nothing was to do, or what went wrong."""

    action: FirewallAction
    outcome: ActionOutcome
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome is ActionOutcome.FAILED


class _NothingToDo(Exception):
    pass


class _Failed(Exception):
    pass


def run(
    actions: Sequence[FirewallAction],
    *,
    keep_going: bool = False,
    timeout: float = COMMAND_SECONDS,
    announce: Callable[[FirewallAction], None] = lambda action: None,
    report: Callable[[ActionResult], None] = lambda result: None,
) -> list[ActionResult]:
    """Run them in order. The first failure ends it, unless `keep_going`, as a removal should."""
    require_programs(actions)
    results: list[ActionResult] = []
    for action in actions:
        announce(action)
        results.append(_run_one(action, timeout))
        report(results[-1])
        if results[-1].failed and not keep_going:
            break
    return results


def require_programs(actions: Iterable[FirewallAction]) -> None:
    """Refuse before anything is done if a CLI is missing."""
    for program in dict.fromkeys(action.program for action in actions):
        if not shutil.which(program):
            hint = "install and log in to it, or run the commands where it is (--output DIR writes a script)"
            raise OperatorError(f"the command {program!r} is not on the PATH", subject="--apply", hint=hint)


def filled(argv: Iterable[str], values: Mapping[str, Sequence[str]]) -> list[str]:
    """The command with what was found; a word that is a placeholder alone becomes as many as were found."""
    words: list[str] = []
    for word in argv:
        alone = PLACEHOLDER.fullmatch(word)
        if alone:
            words += values[alone[1]]
        else:
            words.append(PLACEHOLDER.sub(lambda match: " ".join(values[match[1]]), word))
    return words


def _run_one(action: FirewallAction, timeout: float) -> ActionResult:
    try:
        values: Values = {}
        for lookup in action.lookups:
            values[lookup.variable] = _look_up(lookup, values, timeout)
        return _apply(action, values, timeout)
    except _NothingToDo as reason:
        return ActionResult(action, ActionOutcome.ALREADY, str(reason))
    except _Failed as reason:
        return ActionResult(action, ActionOutcome.FAILED, str(reason))


def _look_up(lookup: Lookup, values: Values, timeout: float) -> list[str]:
    done = _execute(filled(lookup.argv, values), timeout)
    if done.returncode and not _says(done.stderr, lookup.gone):
        raise _Failed(f"cannot look for {lookup.seeks}: {_told(done)}")
    try:
        found = find(lookup, done.stdout) if not done.returncode else []
    except ValueError as error:
        raise _Failed(f"{lookup.argv[0]} gave no sensible answer about {lookup.seeks}: {error}") from error
    if lookup.some is Then.NOTHING_TO_DO and found:
        raise _NothingToDo(f"{lookup.seeks} is there")
    if not found and lookup.none is not Then.GO_ON:
        raise (_Failed if lookup.none is Then.FAIL else _NothingToDo)(f"{lookup.seeks} is not there")
    if len(found) > 1 and not lookup.many:
        raise _Failed(f"{lookup.seeks} is there {len(found)} times: {', '.join(found)}")
    return found


def _apply(action: FirewallAction, values: Values, timeout: float) -> ActionResult:
    done = _execute(filled(action.argv, values), timeout)
    if done.returncode == 0:
        return ActionResult(action, ActionOutcome.DONE)
    if _says(done.stderr + done.stdout, action.already):
        return ActionResult(action, ActionOutcome.ALREADY, _told(done))
    return ActionResult(action, ActionOutcome.FAILED, _told(done))


def _execute(argv: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"AWS_PAGER": "", "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise _Failed(f"{argv[0]} gave no answer within {timeout:g} s") from None
    except OSError as error:
        raise _Failed(f"cannot run {argv[0]}: {error.strerror or error}") from error


def _says(text: str, marks: Iterable[str]) -> bool:
    return any(mark in text for mark in marks)


def _told(done: subprocess.CompletedProcess[str]) -> str:
    """What the CLI said, in one line."""
    said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return said[:_DETAIL_CHARACTERS] or f"exit code {done.returncode}"
