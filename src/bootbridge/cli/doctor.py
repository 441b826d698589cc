"""``bootbridge doctor``: tests each hop from the kube-apiserver to a pod; reports the first broken one."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import closing

from bootbridge.bootstrap.diagnose import doctor
from bootbridge.bootstrap.diagnose.doctor import (
    Diagnosis,
    DiagnosisContext,
    DiagnosisStep,
    StepVerdict,
    from_node,
)
from bootbridge.bootstrap.diagnose.doctor.targets import RequestedDestination, parse
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan.plan import IPAddress, Plan
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.install_flags import (
    add_install_flags,
    default_plan,
    node_addresses,
    open_cluster,
    open_host,
    parse_seconds,
    recorded_or_default_plan,
)
from bootbridge.cli.output import escape_control_characters, print_output
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Tests the hops of a webhook call in order: kube-apiserver, socket, server, agent connection, agent, pod. It
stops at the first broken hop and shows the evidence and the fix. Changes nothing. Run it as root on the
bootstrap node while the tunnel is installed.

  --webhook NAME   also test the pod behind a webhook (or its configuration, an APIService, a CRD with
                   conversion), through the tunnel, and verify its certificate as the kube-apiserver does
  --to HOST:PORT   also dial this address through the tunnel
  --from-node ADDRESS[:PORT]
                   instead, from any machine: test whether the agents' port of the bootstrap node is
                   reachable from here; needs no cluster and no tunnel here. Repeat it for dual stack

Verdicts: ok, warning, broken, unknown (it could not be tested), not-reached (behind the broken hop)."""

_EXAMPLES = """
{program}
{program} --webhook vmachine.capi.example.com
{program} --to 10.128.0.7:8443 --json
{program} --from-node 10.0.0.5
{program} --from-node 10.0.0.5 --from-node fd00::5 --platform aws --infra-id mycluster-x7k2p
"""
_COLOURS = {
    StepVerdict.OK: "32",
    StepVerdict.WARNING: "33",
    StepVerdict.BROKEN: "31;1",
    StepVerdict.UNKNOWN: "33",
    StepVerdict.NOT_REACHED: "2",
}
_COLUMNS = 11


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--webhook", metavar="NAME", default="", help="name of a webhook whose pod is tested too")
    add("--to", metavar="HOST:PORT", default="", help="also dial this address")
    add("--from-node", metavar="ADDRESS[:PORT]", action="append", help="test the agents' port from here")
    add("--timeout", default="10s", metavar="DURATION", help="time limit of each connection (default 10s)")
    add_install_flags(parser)
    add_plan_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    limit = parse_seconds(flags.timeout, "--timeout")
    if sum(map(bool, (flags.webhook, flags.to, flags.from_node))) > 1:
        raise OperatorError(
            "mutually exclusive", subject="--webhook, --to, --from-node", hint="give one of them"
        )
    report = (lambda step: None) if flags.json else _printer()
    diagnosis = _from_node(flags, limit, report) if flags.from_node else _on_node(flags, limit, report)
    if flags.json:
        print_output(json.dumps(diagnosis.document(), indent=2, ensure_ascii=False) + "\n")
    else:
        print_output(_summary(diagnosis))
    return ExitCode.FINDINGS if diagnosis.broken else ExitCode.OK


def _from_node(flags: argparse.Namespace, limit: float, report: Callable[[DiagnosisStep], None]) -> Diagnosis:
    plan = default_plan(flags)
    addresses = [from_node.parse(text, plan.ports.agent) for text in flags.from_node]
    return doctor.probe_from_node(plan, addresses, limit, report)


def _on_node(flags: argparse.Namespace, limit: float, report: Callable[[DiagnosisStep], None]) -> Diagnosis:
    if flags.to:
        parse(flags.to, "--to")
    requested = RequestedDestination(flags.to, flags.webhook) if flags.to or flags.webhook else None
    context = open_context(flags, open_host(flags))
    context.requested, context.dial_seconds = requested, limit
    with closing(context.install):
        return doctor.diagnose(context, report)


def open_context(flags: argparse.Namespace, host: Host) -> DiagnosisContext:
    """The context of this node; a missing cluster is reported by the step that needs it."""
    plan, recorded = recorded_or_default_plan(flags, host)
    no_cluster_because = ""
    try:
        cluster = open_cluster(flags, host, plan)
    except OperatorError as error:
        if flags.kubeconfig:
            raise
        cluster, no_cluster_because = None, str(error)
    install = InstallContext(plan, host, cluster, _addresses(plan))
    return DiagnosisContext(install, recorded, no_cluster_because=no_cluster_because)


def _addresses(plan: Plan) -> tuple[IPAddress, ...]:
    try:
        return node_addresses(plan)
    except OperatorError:
        return ()


def _printer() -> Callable[[DiagnosisStep], None]:
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def report(step: DiagnosisStep) -> None:
        print_output(_line(step, colour))

    return report


def _line(step: DiagnosisStep, colour: bool) -> str:
    verdict = f"{step.verdict:<{_COLUMNS}}"
    shown = f"\x1b[{_COLOURS[step.verdict]}m{verdict}\x1b[0m" if colour else verdict
    lines = [f"{shown}  {step.hop:<16}  {step.name:<21}  {escape_control_characters(step.evidence)}".rstrip()]
    if step.verdict is StepVerdict.WARNING and step.fix:
        lines.append(f"{'':{_COLUMNS}}  fix: {escape_control_characters(step.fix)}")
    return "".join(f"{line}\n" for line in lines)


def _summary(diagnosis: Diagnosis) -> str:
    broken = diagnosis.broken
    fix = f"Fix: {escape_control_characters(broken.fix)}\n" if broken and broken.fix else ""
    return f"\n{escape_control_characters(diagnosis.sentence())}\n{fix}"


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={
        ExitCode.OK: "no hop is broken",
        ExitCode.ERROR: "it could not run",
        ExitCode.FINDINGS: "a hop is broken",
    },
)
