"""``bootbridge up``: installs server and agents on this node and waits until they are ready."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from contextlib import closing

from bootbridge.bootstrap.install import up
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.install.resources.resource import ApplyResult, ResourceChange
from bootbridge.bootstrap.install.up import InstallResult
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.durations import parse_seconds
from bootbridge.cli.install_flags import (
    add_install_flags,
    node_addresses,
    open_cluster,
    open_host,
    plan_to_install,
    require_root_of,
)
from bootbridge.cli.output import print_output, result_terminal
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.common.progress import Progress
from bootbridge.common.terminal.figures import duration
from bootbridge.common.terminal.terminal import Mark, Terminal

_DESCRIPTION = """\
Installs the tunnel on this bootstrap node, in this order: plan record, firewall rule (--firewall), egress
configuration, certificates, socket directory, server static pod, kube-apiserver setting; then for the
agents in the cluster: namespace, agent Secret, agent Role, agent RoleBinding, kube-apiserver address (a file
for the server), agent DaemonSet. Each must be ready before the next is installed. Role, RoleBinding and
address let the server verify agents that prove their node; images that cannot do that get none of the three.

It can be repeated at any time. Resources that match the plan are left alone ('unchanged'). Certificates are
replaced when the node's address has changed or they expire soon. An interrupted run is continued. A second
run uses the recorded plan of the first; flags change it. A failure rolls nothing back.

Before `kubeadm init`, only the resources on the node are installed, and the kubeadm configuration that the
kube-apiserver needs is written; run `up` again when the cluster exists.

Run it as root."""

_EXAMPLES = """
{program} --image=registry.example/bootbridge:1
{program} --dry-run --image=registry.example/bootbridge:1
{program} --no-wait
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dry-run", action="store_true", help="show what would be done; change nothing")
    add("--no-wait", action="store_true", help="do not wait until server and agents are ready")
    add(
        "--timeout",
        default="5m",
        metavar="DURATION",
        help="time limit for each resource (default 5m)",
    )
    add("--firewall", action="store_true", help="also create the platform's firewall rule, with its CLI")
    add("--plan", metavar="FILE", help="start from a plan record that `bootbridge render` wrote")
    add_install_flags(parser)
    add_plan_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    timeout = parse_seconds(flags.timeout, "--timeout")
    host = open_host(flags)
    if not flags.dry_run:
        require_root_of(host)
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
        with closing(context):
            progress = Progress(sys.stderr)
            if flags.dry_run:
                result = up.dry_run(context)
            else:
                result = up.install(context, progress, wait_seconds=timeout, wait=not flags.no_wait)
    if flags.json:
        return print_output(_as_json(result, flags.dry_run))
    if flags.dry_run:
        _show_dry_run(result, flags, result_terminal())
    else:
        _show(result, progress.seconds, result_terminal())
    return ExitCode.OK


def _as_json(result: InstallResult, dry_run: bool) -> str:
    document = {
        "version": 1,
        "dryRun": dry_run,
        "resources": [
            {"resource": resource.name, "change": applied.change, "detail": applied.detail}
            for resource, applied in result.applied
        ],
        "nextStep": result.next_step,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _show_dry_run(result: InstallResult, flags: argparse.Namespace, terminal: Terminal) -> None:
    terminal.table([(resource.title, _would(applied)) for resource, applied in result.applied])
    words = [word for word in flags.words if word != "--dry-run"]
    command = shlex.join([*flags.program.split(), *words])
    details = [f"Afterwards: {result.next_step}"] if result.next_step else []
    terminal.summary(
        Mark.NONE, "Dry run: nothing was changed.", details=details, next_steps=[(command, "install it")]
    )


def _show(result: InstallResult, seconds: float, terminal: Terminal) -> None:
    if result.next_step:
        sentence = f"The resources on the node are installed ({duration(seconds)})."
        terminal.summary(Mark.GOOD, sentence, details=[f"Next: {result.next_step}"])
    elif result.unchanged:
        terminal.summary(
            Mark.GOOD, "The tunnel is already installed; nothing was changed.", next_steps=_NEXT_STEPS
        )
    else:
        terminal.summary(Mark.GOOD, f"The tunnel is installed ({duration(seconds)}).", next_steps=_NEXT_STEPS)


_NEXT_STEPS = (
    ("bootbridge doctor", "test each hop from the kube-apiserver to a pod"),
    ("bootbridge status", "show resources, agents and certificates"),
    ("bootbridge down", "remove everything after the bootstrap"),
)


def _would(applied: ApplyResult) -> str:
    return str(applied) if applied.change is ResourceChange.UNCHANGED else f"would be {applied}"


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={
        ExitCode.OK: "installed, or nothing to do",
        ExitCode.ERROR: "not installed; the reason is on stderr",
        ExitCode.INTERRUPTED: "interrupted; run it again to continue",
    },
)
