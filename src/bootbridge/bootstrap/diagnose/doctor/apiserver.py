"""Steps of the kube-apiserver: it runs, uses our socket, and calls pods instead of services."""

from __future__ import annotations

from bootbridge.bootstrap.diagnose.check.result import CheckResult, at, bypassed, failed, mapping, passed
from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.plan.plan import Flavour
from bootbridge.bootstrap.render import egress_selector as egress
from bootbridge.bootstrap.render.kubeadm import ROUTING_FLAG
from bootbridge.errors import OperatorError

RESTART = "systemctl restart kubelet; `crictl ps -a` shows why the kube-apiserver is not running"
INSTALL = {
    Flavour.KUBEADM: "run `bootbridge up`: it installs what is missing and corrects what has changed",
    Flavour.OPENSHIFT: "systemctl restart bootkube; if that does not help, inject the bootstrap.ign again",
}


def plan_record(context: DiagnosisContext) -> CheckResult:
    path = context.plan.paths.plan_record
    if context.recorded:
        plan = context.plan
        return passed(f"{path}: {plan.flavour} on {plan.platform}, {plan.protocol}")
    fix = (
        "run `bootbridge doctor` on the bootstrap node; if this is it, run `bootbridge up`; for a server "
        "that you started yourself, `bootbridge doctor --server http://127.0.0.1:8095`"
    )
    return failed(f"the tunnel is not installed on this node: {path} not found", fix)


def runs(context: DiagnosisContext) -> CheckResult:
    if context.apiserver is None:
        return failed("no kube-apiserver is running on this node", RESTART)
    return passed(f"process {context.apiserver.pid}")


def egress_selector(context: DiagnosisContext) -> CheckResult:
    given = context.apiserver_setting(egress.FLAG)
    if given in context.egress_config_paths:
        return passed(f"--{egress.FLAG}={given}")
    if given:
        wanted = context.plan.paths.egress_config_seen_by_apiserver
        fix = f"set --{egress.FLAG}={wanted}"
        return failed(f"the kube-apiserver uses another egress configuration: {given}", fix)
    return failed(f"the kube-apiserver has no egress selector (--{egress.FLAG})", _fix(context, egress.FLAG))


def endpoint_routing(context: DiagnosisContext) -> CheckResult:
    """Without this flag the kube-apiserver dials service addresses, which only nodes can reach."""
    given = context.apiserver_setting(ROUTING_FLAG)
    if given in ("true", ""):
        return passed(f"--{ROUTING_FLAG}=true")
    value = f"is {given}" if given else "is not set"
    text = f"the kube-apiserver dials service addresses, not pods: --{ROUTING_FLAG} {value}"
    return failed(text, _fix(context, ROUTING_FLAG))


def _fix(context: DiagnosisContext, flag: str) -> str:
    """If the manifest has the flag, the kubelet has not restarted the kube-apiserver."""
    has_it = any(word.startswith(f"--{flag}=") for word in context.manifest_words() or ())
    if has_it and context.plan.flavour is Flavour.KUBEADM:
        return f"the manifest has the flag, the running process has not: {RESTART}"
    return INSTALL[context.plan.flavour]


def egress_config(context: DiagnosisContext) -> CheckResult:
    """Whether the kube-apiserver accepts the file, and it points to our socket."""
    plan, path = context.plan, context.plan.paths.egress_config
    if context.host.exists(plan.paths.bypass):
        return bypassed(path)
    connection = cluster_connection(context)
    socket = at(connection, "transport", "uds", "udsName")
    if socket not in (plan.paths.socket_seen_by_apiserver, str(context.host.path(plan.paths.socket))):
        text = f"{path} sends cluster traffic to {socket}, not to {plan.paths.socket_seen_by_apiserver}"
        return failed(text, INSTALL[plan.flavour])
    return passed(f"{path}: cluster traffic goes to {socket} by {at(connection, 'proxyProtocol')}")


def cluster_connection(context: DiagnosisContext) -> object:
    plan, path = context.plan, context.plan.paths.egress_config
    data = context.host.read(path)
    if data is None:
        raise OperatorError("file not found", subject=path, hint=INSTALL[plan.flavour])
    document = mapping(data, path)
    if faults := egress.validate(document):
        hint = INSTALL[plan.flavour]
        raise OperatorError(f"the kube-apiserver rejects it: {'; '.join(faults)}", subject=path, hint=hint)
    selections = {str(each.get("name")).lower(): each for each in at(document, "egressSelections") or ()}
    return at(selections, "cluster", "connection")
