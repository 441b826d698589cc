"""``bootbridge down``: take the tunnel away and prove that nothing is left."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bootbridge.bootstrap.install.down import Removal
from bootbridge.bootstrap.install.receipt import Receipt
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.cli.command import complain, show
from bootbridge.cli.install_flags import (
    add_install_flags,
    default_plan,
    open_cluster,
    open_host,
    parse_seconds,
    plan_of_record,
)
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.cli.verb import DONE, FOUND, Parser, run_verb, words
from bootbridge.common.files import Asset, write_file
from bootbridge.common.host import Host
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ClusterClient

_DESCRIPTION = """\
Takes the tunnel away, in this order: DaemonSet, Secret and namespace (by label), the kube-apiserver's
setting, static pod, socket, certificates, egress configuration, firewall rule (if `up --firewall` made it,
or with --firewall), and the plan's record last. Where something fails it warns and goes on. Then it looks
for all of it again, in the cluster and on the node, and writes a receipt: what was there, what was
removed, what remains.

It needs nothing to have worked before: a bootstrap that failed, an API server that does not answer, a
tunnel half laid, a record that is missing (then the default names are used). Run it as often as you like.

Exit codes: 0 nothing is left; 1 it could not run; 2 something remains, see the receipt; 130 interrupted,
run it again."""

_EXAMPLES = """
{program}
{program} --dry-run
{program} --timeout=2m --receipt=/root/receipt.json
"""


def main(argv: Sequence[str] | None = None, program: str = "bootbridge down") -> int:
    """Run the verb; the result is the exit code."""
    return run_verb(program, lambda: _run(words(argv), program))


def _flags(argv: list[str], program: str) -> argparse.Namespace:
    parser = Parser(program, _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument
    add("--dry-run", action="store_true", help="list what is there, in the order of removal; touch nothing")
    add("--timeout", default="60s", metavar="DURATION", help="for each resource to be gone (default 60s)")
    add("--receipt", metavar="FILE", help="where to write it (default /var/log/bootbridge/receipt.json)")
    add(
        "--firewall",
        action="store_true",
        help="remove the platform's firewall rule even if no record names it",
    )
    add_install_flags(parser)
    add_plan_flags(parser)
    return parser.parse_args(argv)


def _run(argv: list[str], program: str) -> int:
    flags = _flags(argv, program)
    limit = parse_seconds(flags.timeout, "--timeout")
    host = open_host(flags)
    warnings: list[str] = []
    plan, recorded = _plan(flags, host, warnings)
    with host.locked(plan.paths.state):
        context = InstallContext(plan, host, _cluster(flags, host, plan, warnings), firewall=flags.firewall)
        removal = Removal(context, Progress(sys.stderr), recorded, limit, warnings)
        try:
            if flags.dry_run:
                return show("".join(f"{item.resource:<14} {item.name}\n" for item in removal.survey()))
            receipt = removal.run()
        finally:
            if context.cluster:
                context.cluster.close()
    path = Path(flags.receipt) if flags.receipt else host.path(plan.paths.receipt)
    _write(path, receipt)
    show(receipt.dump().decode() if flags.json else _as_text(receipt, path))
    return DONE if receipt.clean else FOUND


def _plan(flags: argparse.Namespace, host: Host, warnings: list[str]) -> tuple[Plan, bool]:
    """A record that cannot be read must not keep anything from being removed."""
    try:
        return plan_of_record(flags, host)
    except OperatorError as error:
        warnings.append(f"{error}; the default names are used")
        return default_plan(flags), False


def _cluster(flags: argparse.Namespace, host: Host, plan: Plan, warnings: list[str]) -> ClusterClient | None:
    """Nor may a broken kubeconfig."""
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
        complain(f"the receipt could not be written: {error}")


def _as_text(receipt: Receipt, path: Path) -> str:
    lines = [f"removed  {item}" for item in receipt.removed]
    lines += [f"REMAINS  {item}" for item in receipt.remains]
    lines += [f"warning: {text}" for text in receipt.warnings]
    return "\n".join([*lines, f"{receipt.sentence()} Receipt: {path}"]) + "\n"
