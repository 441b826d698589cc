"""``bootbridge doctor``: walk the way from the kube-apiserver to a pod and name the first broken hop."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence

from bootbridge.bootstrap.diagnose import doctor
from bootbridge.bootstrap.diagnose.doctor import (
    Diagnosis,
    DiagnosisContext,
    DiagnosisStep,
    StepVerdict,
    from_node,
)
from bootbridge.bootstrap.diagnose.doctor.targets import Goal, parse
from bootbridge.bootstrap.install.resources import InstallContext
from bootbridge.bootstrap.plan.plan import IPAddress, Plan
from bootbridge.cli.command import show
from bootbridge.cli.install_flags import (
    add_install_flags,
    default_plan,
    node_addresses,
    open_cluster,
    open_host,
    parse_seconds,
    plan_of_record,
)
from bootbridge.cli.plan_flags import add_plan_flags
from bootbridge.cli.verb import DONE, FOUND, Parser, run_verb, words
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Walks the way that a webhook call takes, kube-apiserver, socket, server, agent link, agent, pod, and stops at
the first hop that is broken: what was seen there, and what mends it. Changes nothing. Run it as root on
the bootstrap node while the tunnel is laid.

  --webhook NAME   goes on to the pod behind a webhook (or its configuration, an APIService, a CRD with
                   conversion), through the tunnel, and checks its certificate as the kube-apiserver does
  --to HOST:PORT   goes on to this address through the tunnel
  --from-node ADDRESS[:PORT]
                   instead, from any machine: whether the agents' port on the bootstrap node can be
                   reached from here; needs no cluster and no tunnel on this machine. Repeat for dual stack

Verdicts: ok, warning, broken, unknown (it could not be looked at), not-reached (behind what is broken).

Exit codes: 0 nothing is broken; 1 it could not run; 2 something is broken; 130 interrupted."""

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


def main(argv: Sequence[str] | None = None, program: str = "bootbridge doctor") -> int:
    """Run the verb; the result is the exit code."""
    return run_verb(program, lambda: _run(_flags(words(argv), program)))


def _flags(argv: list[str], program: str) -> argparse.Namespace:
    parser = Parser(program, _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument
    add("--webhook", metavar="NAME", default="", help="walk on to the pod behind it")
    add("--to", metavar="HOST:PORT", default="", help="walk on to this address")
    add("--from-node", metavar="ADDRESS[:PORT]", action="append", help="try the agents' port from here")
    add("--timeout", default="10s", metavar="DURATION", help="for each connection tried (default 10s)")
    add_install_flags(parser)
    add_plan_flags(parser)
    return parser.parse_args(argv)


def _run(flags: argparse.Namespace) -> int:
    limit = parse_seconds(flags.timeout, "--timeout")
    if sum(map(bool, (flags.webhook, flags.to, flags.from_node))) > 1:
        hint = "give one of --webhook, --to and --from-node"
        raise OperatorError("one destination at a time", subject="--webhook, --to, --from-node", hint=hint)
    tell = (lambda step: None) if flags.json else _printer()
    diagnosis = _from_node(flags, limit, tell) if flags.from_node else _walk(flags, limit, tell)
    if flags.json:
        show(json.dumps(diagnosis.document(), indent=2, ensure_ascii=False) + "\n")
    else:
        show(_last_words(diagnosis))
    return FOUND if diagnosis.broken else DONE


def _from_node(flags: argparse.Namespace, limit: float, tell: Callable[[DiagnosisStep], None]) -> Diagnosis:
    plan = default_plan(flags)
    addresses = [from_node.parse(text, plan.ports.agent) for text in flags.from_node]
    return doctor.probe_from_node(plan, addresses, limit, tell)


def _walk(flags: argparse.Namespace, limit: float, tell: Callable[[DiagnosisStep], None]) -> Diagnosis:
    if flags.to:
        parse(flags.to, "--to")
    goal = Goal(flags.to, flags.webhook) if flags.to or flags.webhook else None
    context = open_context(flags, open_host(flags))
    context.goal, context.dial_seconds = goal, limit
    try:
        return doctor.diagnose(context, tell)
    finally:
        if context.install.cluster:
            context.install.cluster.close()


def open_context(flags: argparse.Namespace, host: Host) -> DiagnosisContext:
    """The way on this node; what cannot be opened is told by the step that would need it."""
    plan, recorded = plan_of_record(flags, host)
    why_not = ""
    try:
        cluster = open_cluster(flags, host, plan)
    except OperatorError as error:
        if flags.kubeconfig:
            raise
        cluster, why_not = None, str(error)
    context = InstallContext(plan, host, cluster, _addresses(plan))
    return DiagnosisContext(context, recorded, no_cluster_because=why_not)


def _addresses(plan: Plan) -> tuple[IPAddress, ...]:
    try:
        return node_addresses(plan)
    except OperatorError:
        return ()


# --- for people


def _printer() -> Callable[[DiagnosisStep], None]:
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def tell(step: DiagnosisStep) -> None:
        show(_line(step, colour))

    return tell


def _line(step: DiagnosisStep, colour: bool) -> str:
    verdict = f"{step.verdict:<{_COLUMNS}}"
    shown = f"\x1b[{_COLOURS[step.verdict]}m{verdict}\x1b[0m" if colour else verdict
    lines = [f"{shown}  {step.hop:<14}  {step.name:<21}  {harmless(step.evidence)}".rstrip()]
    if step.verdict is StepVerdict.WARNING and step.fix:
        lines.append(f"{'':{_COLUMNS}}  fix: {harmless(step.fix)}")
    return "".join(f"{line}\n" for line in lines)


def _last_words(diagnosis: Diagnosis) -> str:
    broken = diagnosis.broken
    fix = f"Fix: {harmless(broken.fix)}\n" if broken and broken.fix else ""
    return f"\n{harmless(diagnosis.sentence())}\n{fix}"


def harmless(text: str) -> str:
    """Evidence may hold anything; on a terminal it stays one harmless line."""
    return "".join(c if c.isprintable() else " " for c in text)
