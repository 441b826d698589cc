"""``bootbridge down``: removes server and agents and verifies that nothing remains."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bootbridge.bootstrap.install.down import Removal
from bootbridge.bootstrap.install.receipt import Receipt, ReceiptItem
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.durations import parse_seconds
from bootbridge.cli.install_flags import (
    add_install_flags,
    add_recorded_plan_flags,
    default_plan,
    open_cluster,
    open_host,
    recorded_or_default_plan,
    require_root_of,
)
from bootbridge.cli.output import print_error, print_output, result_terminal
from bootbridge.cli.plan_flags import FIREWALL_FIELDS, add_plan_flags
from bootbridge.common.files import Asset, write_file
from bootbridge.common.host import Host
from bootbridge.common.progress import Progress
from bootbridge.common.terminal.figures import duration
from bootbridge.common.terminal.terminal import Mark, Styled, Terminal
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ClusterClient

_DESCRIPTION = """\
Removes the tunnel, in this order: agent DaemonSet, kube-apiserver address, agent RoleBinding, agent Role,
agent Secret and namespace (by label), the setting in the kubeadm configuration, kube-apiserver setting,
server static pod, socket directory, certificates, egress configuration, firewall rule (if `up --firewall`
created it, or with --firewall), and the plan record last. A failure is a warning, and the removal continues.
At the end it searches the cluster and the node again, and writes a receipt: what was found, removed, and
what remains.

No earlier step has to have succeeded: the bootstrap may have failed, the API server may not answer, the
installation may be incomplete, the plan record may be missing (then default names are used). It can be
repeated at any time."""

_EXAMPLES = """
{program}
{program} --dry-run
{program} --timeout=2m --receipt=/root/receipt.json
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dry-run", action="store_true", help="list what would be removed, in order; change nothing")
    add(
        "--timeout",
        default="60s",
        metavar="DURATION",
        help="time limit for each resource (default 60s)",
    )
    add("--receipt", metavar="FILE", help="where to write it (default /var/log/bootbridge/receipt.json)")
    add(
        "--firewall",
        action="store_true",
        help="remove the platform's firewall rule even if the install record does not name it",
    )
    add_install_flags(parser)
    add_recorded_plan_flags(parser)
    add_plan_flags(parser, only=FIREWALL_FIELDS, title="with --firewall, without a plan record")


def _run(flags: argparse.Namespace) -> int:
    timeout = parse_seconds(flags.timeout, "--timeout")
    host = open_host(flags)
    require_root_of(host)
    warnings: list[str] = []
    plan, recorded = _plan(flags, host, warnings)
    with host.locked(plan.paths.state):
        context = InstallContext(plan, host, _cluster(flags, host, plan, warnings), firewall=flags.firewall)
        progress = Progress(sys.stderr)
        removal = Removal(context, progress, recorded, timeout, warnings)
        with closing(context):
            if flags.dry_run:
                found = removal.dry_run()
                progress.cancel()
                return _show_dry_run(found, flags, result_terminal())
            receipt = removal.run()
            progress.cancel()
    path = Path(flags.receipt) if flags.receipt else host.path(plan.paths.receipt)
    written = _write(path, receipt)
    if flags.json:
        print_output(receipt.dump().decode())
    else:
        _show(receipt, path if written else None, progress.seconds, result_terminal())
    return ExitCode.OK if receipt.clean else ExitCode.FINDINGS


def _plan(flags: argparse.Namespace, host: Host, warnings: list[str]) -> tuple[Plan, bool]:
    """An invalid plan record is a warning: the removal continues with default names."""
    try:
        return recorded_or_default_plan(flags, host)
    except OperatorError as error:
        warnings.append(f"{error}; default names are used")
        return default_plan(flags), False


def _cluster(flags: argparse.Namespace, host: Host, plan: Plan, warnings: list[str]) -> ClusterClient | None:
    """An invalid kubeconfig is a warning, too."""
    try:
        return open_cluster(flags, host, plan)
    except OperatorError as error:
        warnings.append(str(error))
        return None


def _write(path: Path, receipt: Receipt) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, Asset(receipt.dump()))
    except (OperatorError, OSError) as error:
        print_error(f"receipt not written: {error}")
        return False
    return True


def _show_dry_run(found: Sequence[ReceiptItem], flags: argparse.Namespace, terminal: Terminal) -> int:
    if flags.json:
        return print_output(json.dumps({"found": [item.document() for item in found]}, indent=2) + "\n")
    terminal.table([(item.resource, item.name) for item in found])
    if not found:
        terminal.line("Nothing is installed.")
    words = [word for word in flags.words if word != "--dry-run"]
    steps = [(shlex.join([*flags.program.split(), *words]), "remove it")] if found else []
    terminal.summary(Mark.NONE, "Dry run: nothing was removed.", next_steps=steps)
    return ExitCode.OK


def _show(receipt: Receipt, path: Path | None, seconds: float, terminal: Terminal) -> None:
    terminal.table([("removed", item.name) for item in receipt.removed])
    terminal.table([(Styled("REMAINS", "bad"), item.name, item.reason) for item in receipt.remains])
    for text in receipt.warnings:
        terminal.record([Styled("warning:", "warning"), text])
    details = [f"Receipt: {path}"] if path else []
    sentence = f"{receipt.sentence()} ({duration(seconds)})"
    if receipt.clean:
        terminal.summary(Mark.GOOD, sentence, details=details)
    else:
        steps = [("bootbridge down", "try again after the fix"), ("bootbridge gather", "collect logs")]
        terminal.summary(Mark.BAD, sentence, details=details, next_steps=steps)


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={
        ExitCode.OK: "nothing remains",
        ExitCode.ERROR: "it could not run",
        ExitCode.FINDINGS: "something remains; see the receipt",
        ExitCode.INTERRUPTED: "interrupted; run it again",
    },
)
