"""``bootbridge up``: lay the tunnel on this node and wait until it carries."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from bootbridge.bootstrap.install import up
from bootbridge.bootstrap.install.resources import Site
from bootbridge.bootstrap.install.up import Laying
from bootbridge.cli.command import show
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.cli.site_flags import (
    add_site_flags,
    node_addresses,
    open_cluster,
    open_host,
    plan_to_lay,
    seconds,
)
from bootbridge.cli.verb import DONE, Parser, run_verb, words
from bootbridge.common.progress import Progress

_DESCRIPTION = """\
Lays the tunnel on this bootstrap node, in this order: plan record, firewall rule (--firewall), egress
configuration, certificates, socket directory, server static pod, the kube-apiserver's setting, and in
the cluster namespace, Secret and DaemonSet of the agents. Each is waited for before the next.

Run it again at any time: what is as it should be is left alone ('unchanged'), certificates are made anew
when the node's address has changed or they end soon, and what was interrupted is continued. A second run
takes its plan from the record of the first; flags change it. What fails undoes nothing.

Before `kubeadm init`, the parts on the node are laid and the kubeadm configuration is written
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
    add("--timeout", default="5m", metavar="DURATION", help="for each part to be ready (default 5m)")
    add("--firewall", action="store_true", help="make the platform's firewall rule too, with its own CLI")
    add("--plan", metavar="FILE", help="start from a plan's record, as `bootbridge render` writes it")
    add_site_flags(parser)
    add_plan_flags(parser)
    return parser.parse_args(argv)


def _run(argv: list[str], program: str) -> int:
    flags = _flags(argv, program)
    limit = seconds(flags.timeout, "--timeout")
    host = open_host(flags)
    plan = plan_to_lay(flags, host)
    with host.locked(plan.paths.state):
        site = Site(
            plan,
            host,
            open_cluster(flags, host, plan),
            node_addresses(plan),
            flags.firewall,
            os.path.abspath(flags.kubeconfig) if flags.kubeconfig else "",
        )
        try:
            laying = _lay(site, flags, limit)
        finally:
            if site.cluster:
                site.cluster.close()
    show(_as_json(laying, flags.dry_run) if flags.json else _as_text(laying, flags.dry_run))
    return DONE


def _lay(site: Site, flags: argparse.Namespace, limit: float) -> Laying:
    if flags.dry_run:
        return up.foresee(site)
    return up.lay(site, Progress(sys.stderr), wait_seconds=limit, wait=not flags.no_wait)


def _as_json(laying: Laying, dry_run: bool) -> str:
    document = {
        "version": 1,
        "dryRun": dry_run,
        "parts": [
            {"part": part.name, "change": outcome.change, "detail": outcome.detail}
            for part, outcome in laying.outcomes
        ],
        "nextStep": laying.next_step,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _as_text(laying: Laying, dry_run: bool) -> str:
    lines = []
    if dry_run:
        lines = [f"{part.title:<24} {outcome}" for part, outcome in laying.outcomes]
    elif laying.unchanged and not laying.next_step:
        lines = ["Everything was there already; nothing was changed."]
    elif not laying.next_step:
        lines = ["The tunnel is laid. `bootbridge status` looks at it, `bootbridge down` takes it away."]
    if laying.next_step:
        lines.append(f"Next: {laying.next_step}")
    return "\n".join(lines) + "\n"
