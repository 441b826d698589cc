"""``bootbridge doctor``: tests each hop from the kube-apiserver to a pod; reports the first broken one."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

from bootbridge.bootstrap.diagnose import doctor, running_server
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
from bootbridge.cli.durations import parse_seconds
from bootbridge.cli.install_flags import (
    add_install_flags,
    add_recorded_plan_flags,
    default_plan,
    node_addresses,
    open_cluster,
    open_host,
    recorded_or_default_plan,
)
from bootbridge.cli.output import print_output, result_terminal
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.cli.running_server_flags import (
    add_server_flag,
    add_server_frontend_flags,
    require_server,
    running_server_from,
)
from bootbridge.common.host import Host
from bootbridge.common.progress import Progress
from bootbridge.common.terminal.figures import counted
from bootbridge.common.terminal.terminal import Cell, Mark, Styled
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
  --server URL     instead, of a server that you started yourself: it answers, its certificates, its frontend,
                   its agents, and with --to a dial through them; needs no installation

Verdicts: ok, warning, broken, unknown (it could not be tested), not-reached (behind the broken hop)."""

_EXAMPLES = """
{program}
{program} --webhook vmachine.capi.example.com
{program} --to 10.128.0.7:8443 --json
{program} --server http://127.0.0.1:8095 --to 10.128.0.7:8443
{program} --from-node 10.0.0.5
{program} --from-node 10.0.0.5 --from-node fd00::5 --platform aws --infra-id mycluster-x7k2p
"""
_MARKS = {
    StepVerdict.OK: Mark.GOOD,
    StepVerdict.WARNING: Mark.WARNING,
    StepVerdict.BROKEN: Mark.BAD,
    StepVerdict.UNKNOWN: Mark.UNKNOWN,
    StepVerdict.NOT_REACHED: Mark.SKIPPED,
}
_VERDICT_COLUMNS, _HOP_COLUMNS, _NAME_COLUMNS = 11, 16, 21


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--webhook", metavar="NAME", default="", help="name of a webhook whose pod is tested too")
    add("--to", metavar="HOST:PORT", default="", help="also dial this address")
    add("--from-node", metavar="ADDRESS[:PORT]", action="append", help="test the agents' port from here")
    add_server_flag(parser, "instead, the hops")
    add("--timeout", default="10s", metavar="DURATION", help="time limit of each connection (default 10s)")
    add_install_flags(parser)
    add_recorded_plan_flags(parser)
    fields = ("platform", "infra_id", "user_provisioned", "agent_port")
    add_plan_flags(parser, only=fields, title="with --from-node")
    add_server_frontend_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    limit = parse_seconds(flags.timeout, "--timeout")
    if sum(map(bool, (flags.webhook, flags.to, flags.from_node))) > 1:
        raise OperatorError(
            "mutually exclusive", subject="--webhook, --to, --from-node", hint="give one of them"
        )
    if flags.server and (flags.webhook or flags.from_node):
        hint = "use --to HOST:PORT, the address of the webhook's pod"
        raise OperatorError("cannot be combined with --server", subject="--webhook, --from-node", hint=hint)
    if not flags.server:
        require_server(flags)
    report = None if flags.json else _Report()
    act = _from_node if flags.from_node else _of_server if flags.server else _on_node
    diagnosis = act(flags, limit, report.step if report else lambda step: None)
    if report is None:
        print_output(json.dumps(diagnosis.document(), indent=2, ensure_ascii=False) + "\n")
    else:
        report.summary(diagnosis, flags)
    return ExitCode.FINDINGS if diagnosis.broken else ExitCode.OK


def _from_node(flags: argparse.Namespace, limit: float, report: Callable[[DiagnosisStep], None]) -> Diagnosis:
    plan = default_plan(flags)
    addresses = [from_node.parse(text, plan.ports.agent) for text in flags.from_node]
    return doctor.probe_from_node(plan, addresses, limit, report)


def _of_server(flags: argparse.Namespace, limit: float, report: Callable[[DiagnosisStep], None]) -> Diagnosis:
    return running_server.diagnose(running_server_from(flags, flags.to, limit), report)


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


class _Report:
    """Prints each step as soon as it has run, and the answer at the end.

    A terminal gets marks, and one line for all steps that were not reached; everything else gets the verdicts
    as words.
    """

    def __init__(self) -> None:
        self._terminal = result_terminal()
        self._progress = Progress(sys.stderr if self._terminal.live else None)
        self._not_reached = 0
        self._progress.begin("testing")

    def step(self, step: DiagnosisStep) -> None:
        self._progress.cancel()
        if self._terminal.live and step.verdict is StepVerdict.NOT_REACHED:
            self._not_reached += 1
            return
        lead: Cell = _MARKS[step.verdict] if self._terminal.live else str(step.verdict)
        widths = (0 if self._terminal.live else _VERDICT_COLUMNS, _HOP_COLUMNS, _NAME_COLUMNS)
        self._terminal.record([lead, str(step.hop), step.name, step.evidence], widths)
        if step.verdict is StepVerdict.WARNING and step.fix:
            fix = f"fix: {step.fix}"
            self._terminal.record([Mark.NONE, fix] if self._terminal.live else ["", fix], widths[:1])
        self._progress.begin("testing")

    def summary(self, diagnosis: Diagnosis, flags: argparse.Namespace) -> None:
        self._progress.cancel()
        if self._not_reached:
            text = f"{counted(self._not_reached, 'further step')} not reached"
            self._terminal.record([Mark.SKIPPED, Styled(text, "dim")])
        broken = diagnosis.broken
        again = shlex.join([*flags.program.split(), *flags.words])
        if broken is None:
            untested = any(step.verdict is StepVerdict.UNKNOWN for step in diagnosis.steps)
            mark = Mark.WARNING if untested else Mark.GOOD
            self._terminal.summary(mark, diagnosis.sentence(), next_steps=_next_steps(flags))
            return
        fix = [f"Fix: {broken.fix}"] if broken.fix else []
        next_steps = [(again, "test again after the fix"), *(_watch(flags) if flags.server else _GATHER)]
        mark = Mark.BAD if self._terminal.live else Mark.NONE
        self._terminal.summary(mark, diagnosis.sentence(), details=fix, next_steps=next_steps)


_GATHER = (("bootbridge gather", "collect logs and this analysis for a bug report"),)


def _watch(flags: argparse.Namespace) -> Sequence[tuple[str, str]]:
    return ((shlex.join(["bootbridge", "top", flags.server]), "watch it"),)


def _next_steps(flags: argparse.Namespace) -> Sequence[tuple[str, str]]:
    if flags.server:
        return _watch(flags)
    if flags.webhook or flags.to or flags.from_node:
        return ()
    return (("bootbridge doctor --webhook NAME", "also test the pod behind a webhook"),)


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
