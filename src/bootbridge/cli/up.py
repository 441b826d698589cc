"""``bootbridge up``: lay the tunnel on this node and wait until it carries."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from bootbridge.bootstrap.install import up
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.install.up import InstallResult
from bootbridge.cli.command import show
from bootbridge.cli.install_flags import (
    add_install_flags,
    node_addresses,
    open_cluster,
    open_host,
    parse_seconds,
    plan_to_install,
)
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.cli.verb import DONE, Parser, run_verb, words
from bootbridge.common.progress import Progress

_DESCRIPTION = """\
Lays the tunnel on this bootstrap node, in this order: plan record, firewall rule (--firewall), egress
configuration, certificates, socket directory, server static pod, the kube-apiserver's setting, and in
the cluster namespace, Secret and DaemonSet of the agents. Each is waited for before the next.

Run it again at any time: what is as it should be is left alone ('unchanged'), certificates are made anew
when the node's address has changed or they end soon, and what was interrupted is continued. A second run
takes its plan from the record of the first; flags change it. What fails undoes nothing.

Before `kubeadm init`, the resources on the node are laid and the kubeadm configuration is written
that the kube-apiserver needs; run `up` again when the cluster is there.

Exit codes: 0 done; 1 not done, with the reason; 130 interrupted. Run it as root."""

_EXAMPLES = """
{program} --image=registry.example/bootbridge:1
{program} --dry-run --image=registry.example/bootbridge:1
{program} --no-wait
"""


def main(argv: Sequence[str] | None = None, program: str = "bootbridge up") -> int:
    """Run the verb; the result is the exit code."""
    return run_verb(program, lambda: _run(words(argv), program))


def _flags(argv: list[str], program: str) -> argparse.Namespace:
    parser = Parser(program, _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument
    add("--dry-run", action="store_true", help="say what would be done, and touch nothing")
    add("--no-wait", action="store_true", help="do not wait until server and agents are ready")
    add("--timeout", default="5m", metavar="DURATION", help="for each resource to be ready (default 5m)")
    add("--firewall", action="store_true", help="make the platform's firewall rule too, with its own CLI")
    add("--plan", metavar="FILE", help="start from a plan's record, as `bootbridge render` writes it")
    add_install_flags(parser)
    add_plan_flags(parser)
    return parser.parse_args(argv)


def _run(argv: list[str], program: str) -> int:
    flags = _flags(argv, program)
    limit = parse_seconds(flags.timeout, "--timeout")
    host = open_host(flags)
    plan = plan_to_install(flags, host)
    with host.locked(plan.paths.state):
        context = InstallContext(
            plan,
            host,
            open_cluster(flags, host, plan),
            node_addresses(plan),
            flags.firewall,
            os.path.abspath(flags.kubeconfig) if flags.kubeconfig else "",
        )
        try:
            result = _install(context, flags, limit)
        finally:
            if context.cluster:
                context.cluster.close()
    show(_as_json(result, flags.dry_run) if flags.json else _as_text(result, flags.dry_run))
    return DONE


def _install(context: InstallContext, flags: argparse.Namespace, limit: float) -> InstallResult:
    if flags.dry_run:
        return up.dry_run(context)
    return up.install(context, Progress(sys.stderr), wait_seconds=limit, wait=not flags.no_wait)


def _as_json(result: InstallResult, dry_run: bool) -> str:
    document = {
        "version": 1,
        "dryRun": dry_run,
        "resources": [
            {"resource": resource.name, "change": outcome.change, "detail": outcome.detail}
            for resource, outcome in result.outcomes
        ],
        "nextStep": result.next_step,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _as_text(result: InstallResult, dry_run: bool) -> str:
    lines = []
    if dry_run:
        lines = [f"{resource.title:<24} {outcome}" for resource, outcome in result.outcomes]
    elif result.unchanged and not result.next_step:
        lines = ["Everything was there already; nothing was changed."]
    elif not result.next_step:
        lines = ["The tunnel is laid. `bootbridge status` looks at it, `bootbridge down` takes it away."]
    if result.next_step:
        lines.append(f"Next: {result.next_step}")
    return "\n".join(lines) + "\n"
