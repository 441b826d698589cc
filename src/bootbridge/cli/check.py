"""``bootbridge check``: checks an ignition file, a rendered directory or this node."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bootbridge.bootstrap.diagnose import check
from bootbridge.bootstrap.diagnose.check import CheckResult, CheckVerdict
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import escape_control_characters, print_output
from bootbridge.cli.parser import add_json_flag
from bootbridge.common.files import read_file
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Checks a tunnel without changing it: a bootstrap.ign (whether the tunnel can be injected, or was injected
correctly), a directory that `bootbridge render` wrote, or this node while the tunnel runs. Every check has
a name, a verdict (pass, fail, warn, not-run), evidence, and a fix."""
_EXAMPLES = """\
{program} install/bootstrap.ign
{program} tunnel/
{program} --live
{program} --live --json | jq '.checks[] | select(.verdict == "fail")'
"""
_COLOURS = {
    CheckVerdict.PASS: "32",
    CheckVerdict.FAIL: "31",
    CheckVerdict.WARN: "33",
    CheckVerdict.NOT_RUN: "2",
}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", nargs="?", metavar="TARGET", help="an ignition file or a rendered directory"
    )
    parser.add_argument("--live", action="store_true", help="check this node instead")
    parser.add_argument(
        "--root", metavar="DIR", help="with --live: where the node's file system is mounted (default /)"
    )
    add_json_flag(parser)


def _run(flags: argparse.Namespace) -> int:
    results = _results(flags)
    is_bad = any(result.verdict is CheckVerdict.FAIL for result in results)
    if flags.json:
        document = {"failed": is_bad, "checks": [asdict(result) for result in results]}
        print_output(json.dumps(document, indent=2) + "\n")
    else:
        print_output(_table(results, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return ExitCode.FINDINGS if is_bad else ExitCode.OK


def _results(flags: argparse.Namespace) -> list[CheckResult]:
    if flags.live == bool(flags.target):
        hint = "name an ignition file or a rendered directory, or give --live"
        raise OperatorError("exactly one target is required", subject="TARGET", hint=hint)
    if flags.root is not None and not flags.live:
        raise OperatorError("requires --live", subject="--root")
    now = datetime.now(UTC)
    if flags.live:
        return check.of_node(Path(flags.root or "/"), now)
    target = Path(flags.target)
    return (
        check.of_directory(target)
        if target.is_dir()
        else check.of_ignition(read_file(target), now, flags.target)
    )


def _table(results: Sequence[CheckResult], *, colour: bool) -> str:
    wide = max(len(result.name) for result in results)
    lines = []
    for result in results:
        verdict = f"{result.verdict:<7}"
        shown = f"\x1b[{_COLOURS[result.verdict]}m{verdict}\x1b[0m" if colour else verdict
        lines.append(f"{shown}  {result.name:<{wide}}  {escape_control_characters(result.evidence)}")
        if result.fix and result.verdict in (CheckVerdict.FAIL, CheckVerdict.WARN):
            lines.append(f"{'':7}  {'':<{wide}}  fix: {escape_control_characters(result.fix)}")
    return "".join(f"{line}\n" for line in [*lines, _summary(results)])


def _summary(results: Sequence[CheckResult]) -> str:
    verdicts = [result.verdict for result in results]
    counted = [f"{verdicts.count(verdict)} {verdict}" for verdict in CheckVerdict if verdict in verdicts]
    return f"{len(results)} checks: {', '.join(counted)}"


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={
        ExitCode.OK: "no check failed",
        ExitCode.ERROR: "nothing could be checked",
        ExitCode.FINDINGS: "a check failed",
    },
)
