"""``bootbridge check``: look over an ignition file, an asset directory or a live node."""

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
from bootbridge.cli.command import show
from bootbridge.cli.verb import DONE, FOUND, Parser, run_verb, words
from bootbridge.common.files import read_file
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Looks over a tunnel without touching it: a bootstrap.ign (whether the tunnel fits in; if it is
in, whether it is in right), a directory that 'bootbridge render' wrote, or this node while the
tunnel runs. Every check has a name, a verdict (pass, fail, warn, not-run), what was seen, and the fix.

Exit codes: 0 nothing failed, 2 a check failed, 1 nothing could be checked."""
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


def main(argv: Sequence[str] | None = None, program: str = "bootbridge check") -> int:
    """Check; the result is the exit code."""
    return run_verb(program, lambda: _run(_parser(program).parse_args(words(argv))))


def _parser(program: str) -> Parser:
    parser = Parser(program, _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "target", nargs="?", metavar="TARGET", help="an ignition file or a rendered directory"
    )
    parser.add_argument("--live", action="store_true", help="check this node instead")
    parser.add_argument("--root", metavar="DIR", help="with --live: where the node's files lie (default /)")
    parser.add_argument("--json", action="store_true", help="for scripts")
    return parser


def _run(flags: argparse.Namespace) -> int:
    findings = _findings(flags)
    is_bad = any(finding.verdict is CheckVerdict.FAIL for finding in findings)
    if flags.json:
        document = {"failed": is_bad, "checks": [asdict(finding) for finding in findings]}
        show(json.dumps(document, indent=2) + "\n")
    else:
        show(_table(findings, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return FOUND if is_bad else DONE


def _findings(flags: argparse.Namespace) -> list[CheckResult]:
    if flags.live == bool(flags.target):
        hint = "name an ignition file or a rendered directory, or say --live"
        raise OperatorError("one thing to check is needed", subject="TARGET", hint=hint)
    if flags.root is not None and not flags.live:
        raise OperatorError("goes with --live only", subject="--root")
    now = datetime.now(UTC)
    if flags.live:
        return check.of_node(Path(flags.root or "/"), now)
    target = Path(flags.target)
    return (
        check.of_directory(target)
        if target.is_dir()
        else check.of_ignition(read_file(target), now, flags.target)
    )


def _table(findings: Sequence[CheckResult], *, colour: bool) -> str:
    wide = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        verdict = f"{finding.verdict:<7}"
        shown = f"\x1b[{_COLOURS[finding.verdict]}m{verdict}\x1b[0m" if colour else verdict
        lines.append(f"{shown}  {finding.name:<{wide}}  {_line(finding.evidence)}")
        if finding.fix and finding.verdict in (CheckVerdict.FAIL, CheckVerdict.WARN):
            lines.append(f"{'':7}  {'':<{wide}}  fix: {_line(finding.fix)}")
    return "".join(f"{line}\n" for line in [*lines, _summary(findings)])


def _summary(findings: Sequence[CheckResult]) -> str:
    verdicts = [finding.verdict for finding in findings]
    counted = [f"{verdicts.count(verdict)} {verdict}" for verdict in CheckVerdict if verdict in verdicts]
    return f"{len(findings)} checks: {', '.join(counted)}"


def _line(text: str) -> str:
    """Evidence may hold anything; on a terminal it stays one harmless line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
