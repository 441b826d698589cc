"""Checks of the files of permanent servers, which `bootbridge render --permanent` wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bootbridge.bootstrap.diagnose.check.rendered_files import (
    RENDER_AGAIN,
    RenderedFiles,
    as_rendered,
    complete,
    egress,
    identity_faults,
    modes,
    no_private_key,
    server_pod_faults,
)
from bootbridge.bootstrap.diagnose.check.result import CheckResult, at, judged, not_run, passed, run
from bootbridge.bootstrap.plan.permanent import PermanentPlan
from bootbridge.bootstrap.render import permanent, program_flags
from bootbridge.common.files import Tree

# Flags that decide who may connect as an agent, and what it may advertise.
_GUARDS = (
    "--cluster-ca-cert=",
    "--agent-namespace=",
    "--agent-service-account=",
    "--authentication-audience=",
    "--agent-identifier-proof=",
)


@dataclass(frozen=True)
class PermanentTree(RenderedFiles):
    """The files of permanent servers, and the plan that they were made from."""

    plan: PermanentPlan

    @property
    def wanted(self) -> Tree:
        return {f"/{path}": asset for path, asset in permanent.output_files(self.plan).items()}


def of_tree(subject: PermanentTree) -> list[CheckResult]:
    return run(PERMANENT_CHECKS, subject)


def _plan(subject: PermanentTree) -> CheckResult:
    plan = subject.plan
    count = f"{plan.server_count} servers" if plan.server_count else "servers counted by leases"
    return passed(f"permanent, {plan.protocol}, agents with a {plan.authentication}, {count}")


def _server_pod(subject: PermanentTree) -> CheckResult:
    """A flag that authenticates agents must not be missing after a change by hand."""
    plan, pod = subject.plan, subject.yaml(subject.plan.paths.permanent_server_pod)
    given = at(pod, "spec", "containers", 0, "args") or []
    guards = (
        "--cluster-ca-cert=",
        "--authentication-audience=",
        "--agent-",
        "--enable-lease",
        "--server-count",
    )
    wanted = [word for word in program_flags.permanent_server_args(plan) if word.startswith(guards)]
    faults = [
        *identity_faults(pod, "Pod", plan.server_pod_name, plan.server_pod_namespace),
        *server_pod_faults(pod, plan),
        *(
            f"{word} is missing"
            for word in wanted
            if word not in given and not word.startswith("--agent-port")
        ),
    ]
    return judged(
        faults, f"agents on {plan.ports.agent}, kube-apiserver on {plan.paths.socket}", RENDER_AGAIN
    )


def _image(subject: PermanentTree) -> CheckResult:
    pod = subject.yaml(subject.plan.paths.permanent_server_pod)
    found = at(pod, "spec", "containers", 0, "image")
    return judged([] if found else ["the pod has no image"], str(found), RENDER_AGAIN)


def _roles(subject: PermanentTree) -> CheckResult:
    if not permanent.server_roles(subject.plan):
        return not_run("the servers call no API that needs a role")
    text = subject.data(f"/{permanent.RBAC}")
    faults = [] if subject.plan.server_user.encode() in text else [f"not bound to {subject.plan.server_user}"]
    return judged(faults, f"bound to {subject.plan.server_user}", RENDER_AGAIN)


def _agent_values(subject: PermanentTree) -> CheckResult:
    """Servers and agents must agree, or no agent connects."""
    values, wanted = subject.yaml(f"/{permanent.AGENT_VALUES}"), permanent.agent_values(subject.plan)
    paths = (
        ("servers", "port"),
        ("servers", "count"),
        ("authentication", "method"),
        ("authentication", "token", "audience"),
        ("authentication", "proveNode"),
        ("serviceAccount", "name"),
    )
    faults = [
        f"{'.'.join(path)} is {at(values, *path)}, the servers expect {at(wanted, *path)}"
        for path in paths
        if at(values, *path) != at(wanted, *path)
    ]
    if not at(values, "servers", "hosts"):
        faults.append("servers.hosts is empty")
    hosts = ", ".join(map(str, at(values, "servers", "hosts") or ()))
    return judged(faults, f"agents dial {hosts}", "correct the values, or render again")


PERMANENT_CHECKS: dict[str, Callable[[PermanentTree], CheckResult]] = {
    "plan-record": _plan,
    "files-complete": complete,
    "as-rendered": as_rendered,
    "modes": modes,
    "no-private-key": no_private_key,
    "egress-config": egress,
    "server-pod": _server_pod,
    "image": _image,
    "server-roles": _roles,
    "agent-values": _agent_values,
}
