"""``bootbridge down``: removes server and agents and verifies that nothing remains."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

from bootbridge.bootstrap.install.down import Removal
from bootbridge.bootstrap.install.receipt import Receipt
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.install_flags import (
    add_install_flags,
    default_plan,
    open_cluster,
    open_host,
    parse_seconds,
    recorded_or_default_plan,
)
from bootbridge.cli.output import print_error, print_output
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.common.files import Asset, write_file
from bootbridge.common.host import Host
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ClusterClient

_DESCRIPTION = """\
Removes the tunnel, in this order: DaemonSet, Secret and namespace (by label), the kube-apiserver's setting,
static pod, socket, certificates, egress configuration, firewall rule (if `up --firewall` created it, or with
--firewall), and the plan record last. A failure is a warning, and the removal continues. At the end it
searches the cluster and the node again, and writes a receipt: what was found, removed, and what remains.

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
    add_plan_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    timeout = parse_seconds(flags.timeout, "--timeout")
    host = open_host(flags)
    warnings: list[str] = []
    plan, recorded = _plan(flags, host, warnings)
    with host.locked(plan.paths.state):
        context = InstallContext(plan, host, _cluster(flags, host, plan, warnings), firewall=flags.firewall)
        removal = Removal(context, Progress(sys.stderr), recorded, timeout, warnings)
        with closing(context):
            if flags.dry_run:
                return print_output(_dry_run_text(removal))
            receipt = removal.run()
    path = Path(flags.receipt) if flags.receipt else host.path(plan.paths.receipt)
    _write(path, receipt)
    print_output(receipt.dump().decode() if flags.json else _as_text(receipt, path))
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


def _write(path: Path, receipt: Receipt) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, Asset(receipt.dump()))
    except (OperatorError, OSError) as error:
        print_error(f"receipt not written: {error}")


def _dry_run_text(removal: Removal) -> str:
    lines = [f"{item.resource:<14} {item.name}" for item in removal.dry_run()]
    return "\n".join([*(lines or ["Nothing is installed."]), "Dry run: nothing was removed."]) + "\n"


def _as_text(receipt: Receipt, path: Path) -> str:
    lines = [f"removed  {item}" for item in receipt.removed]
    lines += [f"REMAINS  {item}" for item in receipt.remains]
    lines += [f"warning: {text}" for text in receipt.warnings]
    return "\n".join([*lines, f"{receipt.sentence()} Receipt: {path}"]) + "\n"


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
