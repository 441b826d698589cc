"""The kube-apiserver's hop: it runs, it knows the socket, and it asks for pods, not for services."""

from __future__ import annotations

from bootbridge.bootstrap.diagnose.check.result import CheckResult, at, failed, mapping, passed
from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.plan.plan import Flavour
from bootbridge.bootstrap.render import egress_selector as egress
from bootbridge.bootstrap.render.kubeadm import ROUTING_FLAG
from bootbridge.errors import OperatorError

RESTART = "systemctl restart kubelet, and see `crictl ps -a` for what keeps the kube-apiserver down"
LAY = {
    Flavour.KUBEADM: "run `bootbridge up`: it lays what is missing and mends what has changed",
    Flavour.OPENSHIFT: "systemctl restart bootkube; if that does not help, inject the bootstrap.ign anew",
}


def plan_record(context: DiagnosisContext) -> CheckResult:
    path = context.plan.paths.plan_record
    if context.recorded:
        plan = context.plan
        return passed(f"{path}: {plan.flavour} on {plan.platform}, {plan.protocol}")
    fix = "run the doctor on the bootstrap node; if this is it, lay the tunnel with `bootbridge up`"
    return failed(f"no tunnel was laid here: there is no {path}", fix)


def runs(context: DiagnosisContext) -> CheckResult:
    if context.apiserver is None:
        return failed("no kube-apiserver runs on this node", RESTART)
    return passed(f"process {context.apiserver.pid}")


def egress_selector(context: DiagnosisContext) -> CheckResult:
    given = context.apiserver_setting(egress.FLAG)
    if given in context.egress_config_paths:
        return passed(f"--{egress.FLAG}={given}")
    if given:
        wanted = context.plan.paths.egress_config_seen_by_apiserver
        fix = f"let --{egress.FLAG} be {wanted}"
        return failed(f"the kube-apiserver uses another egress configuration: {given}", fix)
    return failed(f"the kube-apiserver has no egress selector (--{egress.FLAG})", _mend(context, egress.FLAG))


def endpoint_routing(context: DiagnosisContext) -> CheckResult:
    """Without it a webhook's service address is dialled, which only nodes can reach."""
    given = context.apiserver_setting(ROUTING_FLAG)
    if given in ("true", ""):
        return passed(f"--{ROUTING_FLAG}=true")
    said = f"it is {given}" if given else "it is not set"
    text = f"the kube-apiserver calls service addresses, not pods: --{ROUTING_FLAG}, {said}"
    return failed(text, _mend(context, ROUTING_FLAG))


def _mend(context: DiagnosisContext, flag: str) -> str:
    """A manifest that has the flag already was not taken up by the kubelet."""
    has_it = any(word.startswith(f"--{flag}=") for word in context.manifest_words() or ())
    if has_it and context.plan.flavour is Flavour.KUBEADM:
        return f"the manifest has it, the process has not: {RESTART}"
    return LAY[context.plan.flavour]


def egress_config(context: DiagnosisContext) -> CheckResult:
    """Whether it parses as the kube-apiserver parses it, and leads to our socket."""
    plan, path = context.plan, context.plan.paths.egress_config
    connection = cluster_connection(context)
    socket = at(connection, "transport", "uds", "udsName")
    if socket not in (plan.paths.socket_seen_by_apiserver, str(context.host.path(plan.paths.socket))):
        text = f"{path} sends cluster traffic to {socket}, not to {plan.paths.socket_seen_by_apiserver}"
        return failed(text, LAY[plan.flavour])
    return passed(f"{path}: cluster traffic goes to {socket} by {at(connection, 'proxyProtocol')}")


def cluster_connection(context: DiagnosisContext) -> object:
    plan, path = context.plan, context.plan.paths.egress_config
    data = context.host.read(path)
    if data is None:
        raise OperatorError("is not there", subject=path, hint=LAY[plan.flavour])
    document = mapping(data, path)
    if faults := egress.validate(document):
        hint = LAY[plan.flavour]
        raise OperatorError(f"the kube-apiserver refuses it: {'; '.join(faults)}", subject=path, hint=hint)
    selections = {str(each.get("name")).lower(): each for each in at(document, "egressSelections") or ()}
    return at(selections, "cluster", "connection")
