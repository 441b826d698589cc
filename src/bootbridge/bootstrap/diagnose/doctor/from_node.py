"""Tests the agents' port from a node; needs no cluster, certificate or plan record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bootbridge.bootstrap import firewall
from bootbridge.bootstrap.diagnose.check.result import CheckResult, failed, passed
from bootbridge.bootstrap.diagnose.doctor.step import Diagnosis, DiagnosisStep, Hop, run_steps
from bootbridge.bootstrap.firewall.probe import FirewallProbeResult, PortState, probe
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.errors import OperatorError

Address = tuple[str, int]


def parse(text: str, port: int) -> Address:
    """`ADDRESS`, `ADDRESS:PORT` or `[ADDRESS]:PORT`; a bare IPv6 address has no port."""
    if text.startswith("["):
        address, _, given = text[1:].partition("]")
        given = given.removeprefix(":")
    elif text.count(":") == 1:
        address, _, given = text.partition(":")
    else:
        address, given = text, ""
    if given and not (given.isdigit() and 0 < int(given) < 65536):
        hint = "write it like 10.0.0.5, 10.0.0.5:8091 or [fd00::5]:8091"
        raise OperatorError(f"invalid port in {text!r}", subject="--from-node", hint=hint)
    return address, int(given) if given else port


def probe_from_node(
    plan: Plan,
    addresses: Sequence[Address],
    seconds: float,
    report: Callable[[DiagnosisStep], None] = lambda step: None,
) -> Diagnosis:
    """Tests all addresses: one may be open and another not."""
    steps: list[DiagnosisStep] = []
    for address, port in addresses:
        found = probe(address, port, seconds)
        name = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        steps += run_steps([(Hop.CONNECTION, name, lambda found=found: _judge(plan, found))], report).steps  # type: ignore[misc]
    return Diagnosis(tuple(steps))


def _judge(plan: Plan, found: FirewallProbeResult) -> CheckResult:
    evidence = f"{found.state}: {found.evidence} ({found.seconds:.1f} s)"
    if found.is_open:
        return passed(evidence)
    closed = found.state in (PortState.FILTERED, PortState.UNREACHABLE)
    return failed(evidence, f"{found.fix}. {_on_platform(plan)}" if closed else found.fix)


def _on_platform(plan: Plan) -> str:
    if firewall.is_managed(plan):
        infra = plan.infra_id or "INFRA_ID"
        create = f"bootbridge firewall create --platform {plan.platform} --infra-id {infra} --apply"
        return f"On {plan.platform}: {create}"
    who = "user-provisioned" if plan.user_provisioned else plan.platform
    return (
        f"On {who} you manage the firewall: open TCP {plan.ports.agent} from all nodes to the bootstrap node"
    )
