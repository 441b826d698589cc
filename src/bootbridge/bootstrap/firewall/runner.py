"""Runs actions through the cloud's CLI, each with a time limit. An action that was done before succeeds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bootbridge.bootstrap.firewall.json_query import select_values
from bootbridge.bootstrap.firewall.model import PLACEHOLDER, FirewallAction, Lookup, Presence
from bootbridge.errors import OperatorError

COMMAND_SECONDS = 120.0
_DETAIL_CHARACTERS = 500
Values = dict[str, list[str]]


class ActionOutcome(StrEnum):
    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"


@dataclass(frozen=True)
class ActionResult:
    """Holds the outcome of an action. `detail` gives the reason if it was skipped or failed."""

    action: FirewallAction
    outcome: ActionOutcome
    detail: str = ""
    found: Values = field(default_factory=dict)  # what the lookups found, by variable

    @property
    def failed(self) -> bool:
        return self.outcome is ActionOutcome.FAILED


class _Skipped(Exception):
    pass


class _Failed(Exception):
    pass


def run(
    actions: Sequence[FirewallAction],
    *,
    keep_going: bool = False,
    timeout: float = COMMAND_SECONDS,
    announce: Callable[[FirewallAction], None] = lambda action: None,
    report_found: Callable[[Lookup, Sequence[str]], None] = lambda lookup, values: None,
    report: Callable[[ActionResult], None] = lambda result: None,
) -> list[ActionResult]:
    """Runs the actions in order. Stops at the first failure unless `keep_going`, which a removal sets."""
    require_programs(actions)
    results: list[ActionResult] = []
    for action in actions:
        announce(action)
        results.append(_run_one(action, timeout, report_found))
        report(results[-1])
        if results[-1].failed and not keep_going:
            break
    return results


def require_programs(actions: Iterable[FirewallAction]) -> None:
    """Raises OperatorError if a CLI is missing, before anything runs."""
    for program in dict.fromkeys(action.program for action in actions):
        if not shutil.which(program):
            hint = "install it and log in, or run the script that --output DIR writes where it is installed"
            raise OperatorError(f"command not found: {program!r}", subject="--apply", hint=hint)


def fill_placeholders(argv: Iterable[str], values: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the command with the values. A word that is only a placeholder becomes one word per value."""
    words: list[str] = []
    for word in argv:
        alone = PLACEHOLDER.fullmatch(word)
        if alone:
            words += values[alone[1]]
        else:
            words.append(PLACEHOLDER.sub(lambda match: " ".join(values[match[1]]), word))
    return words


def _run_one(
    action: FirewallAction, timeout: float, report_found: Callable[[Lookup, Sequence[str]], None]
) -> ActionResult:
    values: Values = {}
    answers: dict[tuple[str, ...], subprocess.CompletedProcess[str]] = {}
    try:
        for lookup in action.lookups:
            # Several lookups may read different fields of one answer.
            argv = tuple(fill_placeholders(lookup.argv, values))
            if argv not in answers:
                answers[argv] = _execute(list(argv), timeout)
            values[lookup.variable] = _select(lookup, answers[argv])
            if values[lookup.variable]:
                report_found(lookup, values[lookup.variable])
        outcome, detail = _apply(action, values, timeout)
    except _Skipped as reason:
        outcome, detail = ActionOutcome.UNCHANGED, str(reason)
    except _Failed as reason:
        outcome, detail = ActionOutcome.FAILED, str(reason)
    return ActionResult(action, outcome, detail, values)


def _select(lookup: Lookup, done: subprocess.CompletedProcess[str]) -> list[str]:
    if done.returncode and not _contains(done.stderr, lookup.not_found):
        raise _Failed(f"lookup of {lookup.description} failed: {_output(done)}")
    try:
        found = select_values(lookup, done.stdout) if not done.returncode else []
    except ValueError as error:
        raise _Failed(f"invalid output of {lookup.argv[0]} for {lookup.description}: {error}") from error
    if found and lookup.presence is Presence.SKIP_IF_FOUND:
        raise _Skipped(f"{lookup.description} already exists")
    if not found and lookup.presence is Presence.REQUIRED:
        raise _Failed(lookup.missing)
    if not found and lookup.presence is Presence.SKIP_IF_MISSING:
        raise _Skipped(lookup.missing)
    if len(found) > 1 and not lookup.multiple:
        raise _Failed(f"{lookup.description} exists {len(found)} times: {', '.join(found)}")
    return found


def _apply(action: FirewallAction, values: Values, timeout: float) -> tuple[ActionOutcome, str]:
    done = _execute(fill_placeholders(action.argv, values), timeout)
    if done.returncode == 0:
        return ActionOutcome.DONE, ""
    if _contains(done.stderr + done.stdout, action.already_done):
        return ActionOutcome.UNCHANGED, _output(done)
    return ActionOutcome.FAILED, _output(done)


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
        raise _Failed(f"{argv[0]} timed out after {timeout:g}s") from None
    except OSError as error:
        raise _Failed(f"cannot run {argv[0]}: {error.strerror or error}") from error


def _contains(text: str, marks: Iterable[str]) -> bool:
    return any(mark in text for mark in marks)


def _output(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the CLI's output in one line."""
    text = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return text[:_DETAIL_CHARACTERS] or f"exit code {done.returncode}"
