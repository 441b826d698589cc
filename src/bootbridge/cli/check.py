"""``bootbridge check``: checks an ignition file, a rendered directory or this node."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bootbridge.bootstrap.diagnose import check, running_server
from bootbridge.bootstrap.diagnose.check import CheckResult, CheckVerdict
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.install_flags import require_readable
from bootbridge.cli.output import print_output, result_terminal
from bootbridge.cli.parser import add_json_flag
from bootbridge.cli.running_server_flags import (
    add_server_flag,
    add_server_frontend_flags,
    require_server,
    running_server_from,
)
from bootbridge.common.files import read_file
from bootbridge.common.host import Host
from bootbridge.common.terminal.figures import counted
from bootbridge.common.terminal.terminal import Cell, Mark, Terminal
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Checks a tunnel without changing it: a bootstrap.ign (whether the tunnel can be injected, or was injected
correctly), a directory that `bootbridge render` wrote, this node while the tunnel runs, or a server that you
started yourself. Every check has a name, a verdict (pass, fail, warn, not-run), evidence, and a fix."""
_EXAMPLES = """\
{program} install/bootstrap.ign
{program} tunnel/
{program} --live
{program} --server http://127.0.0.1:8095
{program} --live --json | jq '.checks[] | select(.verdict == "fail")'
"""
_MARKS = {
    CheckVerdict.PASS: Mark.GOOD,
    CheckVerdict.FAIL: Mark.BAD,
    CheckVerdict.WARN: Mark.WARNING,
    CheckVerdict.NOT_RUN: Mark.SKIPPED,
}
_VERDICT_COLUMNS = 7


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", nargs="?", metavar="TARGET", help="an ignition file or a rendered directory"
    )
    parser.add_argument("--live", action="store_true", help="check this node instead")
    add_server_flag(parser, "instead, check the parts")
    parser.add_argument(
        "--root", metavar="DIR", help="with --live: where the node's file system is mounted (default /)"
    )
    add_json_flag(parser)
    add_server_frontend_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    results = _results(flags)
    is_bad = any(result.verdict is CheckVerdict.FAIL for result in results)
    if flags.json:
        document = {"failed": is_bad, "checks": [asdict(result) for result in results]}
        print_output(json.dumps(document, indent=2) + "\n")
    else:
        _show(results, flags, result_terminal())
    return ExitCode.FINDINGS if is_bad else ExitCode.OK


def _results(flags: argparse.Namespace) -> list[CheckResult]:
    if flags.server:
        if flags.target or flags.root is not None:
            raise OperatorError("cannot be combined with --server", subject="TARGET, --root")
        return running_server.check(running_server_from(flags))
    require_server(flags)
    if flags.live == bool(flags.target):
        hint = "name an ignition file or a rendered directory, or give --live or --server URL"
        raise OperatorError("exactly one target is required", subject="TARGET", hint=hint)
    if flags.root is not None and not flags.live:
        raise OperatorError("requires --live", subject="--root")
    now = datetime.now(UTC)
    if flags.live:
        require_readable(Host(flags.root or "/"))
        return check.of_node(Path(flags.root or "/"), now)
    target = Path(flags.target)
    return (
        check.of_directory(target)
        if target.is_dir()
        else check.of_ignition(read_file(target), now, flags.target)
    )


def _show(results: Sequence[CheckResult], flags: argparse.Namespace, terminal: Terminal) -> None:
    """A terminal gets marks; everything else gets the verdicts as words."""
    wide = max(len(result.name) for result in results)
    for result in results:
        lead: Cell = _MARKS[result.verdict] if terminal.live else str(result.verdict)
        widths = (0 if terminal.live else _VERDICT_COLUMNS, wide)
        terminal.record([lead, result.name, result.evidence], widths)
        if result.fix and result.verdict in (CheckVerdict.FAIL, CheckVerdict.WARN):
            terminal.record([Mark.NONE if terminal.live else "", "", f"fix: {result.fix}"], widths)
    verdicts = [result.verdict for result in results]
    worst = next((each for each in (CheckVerdict.FAIL, CheckVerdict.WARN) if each in verdicts), None)
    mark = _MARKS[worst or CheckVerdict.PASS] if terminal.live else Mark.NONE
    terminal.summary(mark, _summary(verdicts), next_steps=_next_steps(flags, worst is CheckVerdict.FAIL))


def _summary(verdicts: Sequence[CheckVerdict]) -> str:
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in CheckVerdict if verdict in verdicts]
    return f"{counted(len(verdicts), 'check')}: {', '.join(counts)}"


def _next_steps(flags: argparse.Namespace, failed: bool) -> Sequence[tuple[str, str]]:
    if failed:
        return ((shlex.join([*flags.program.split(), *flags.words]), "check again after the fix"),)
    if flags.server:
        command = shlex.join(["bootbridge", "doctor", "--server", flags.server, "--to"])
        return ((f"{command} HOST:PORT", "test each hop up to a destination"),)
    return (("bootbridge doctor", "test each hop up to a pod"),) if flags.live else ()


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
