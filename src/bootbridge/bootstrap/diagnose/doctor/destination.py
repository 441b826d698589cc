"""The last hop: from an agent to the pod, and whether it is the one that was meant."""

from __future__ import annotations

import ssl
from contextlib import AbstractContextManager
from dataclasses import dataclass

from bootbridge.bootstrap.diagnose.check.result import CheckResult, at, failed, not_run, passed
from bootbridge.bootstrap.diagnose.doctor import apiserver, targets, tunnel
from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.diagnose.doctor.targets import Caller, Destination, parse
from bootbridge.bootstrap.plan.plan import Protocol
from bootbridge.kube.kinds import POD

ASK = "say --to HOST:PORT or --webhook NAME to walk on to a pod"


def resolve(context: DiagnosisContext) -> CheckResult:
    """From a name to an address; a pod that is not ready ends the walk here."""
    goal = context.goal
    if goal is None:
        return _an_agent(context)
    if goal.to:
        context.destination = Destination(*parse(goal.to, "--to"))
        return passed(context.destination.address)
    if context.cluster is None:
        return not_run(f"the cluster cannot be asked: {context.no_cluster_because}")
    caller = targets.caller_named(context.cluster, goal.webhook)
    if isinstance(caller, str):
        return not_run(caller)
    found = targets.pod_of(context.cluster, caller)
    if isinstance(found, str):
        fix = f"this is the webhook's own: look at its pods (kubectl -n {caller.namespace} get pods)"
        return failed(f"the webhook is not ready: {found}", fix)
    context.destination = found
    return passed(f"{caller.title} is {found}")


def _an_agent(context: DiagnosisContext) -> CheckResult:
    """Nobody said where to: an agent's own pod shows that the whole way carries."""
    plan = context.plan
    if context.cluster is None or plan.host_network:
        return not_run(ASK)
    for pod in context.cluster.list(POD, plan.namespace, plan.selector):
        address = at(pod, "status", "podIP")
        if address and not targets.why_not_ready(pod):
            name = pod["metadata"]["name"]
            context.destination = Destination(address, plan.ports.agent_health, None, plan.namespace, name)
            return passed(f"{context.destination}; {ASK}")
    return not_run(ASK)


def dial(context: DiagnosisContext) -> CheckResult:
    if context.destination is None:
        return not_run("there is no destination")
    try:
        with _dialled(context, context.destination):
            return passed(f"an agent reaches {context.destination}")
    except tunnel.NoConnectionError as error:
        return _judge(context, context.destination, error)


def _dialled(
    context: DiagnosisContext, destination: Destination
) -> AbstractContextManager[tunnel.Connection]:
    path = context.host.path(context.plan.paths.socket)
    spoken = Protocol(str(at(apiserver.cluster_connection(context), "proxyProtocol")))
    return tunnel.dialled(path, spoken, destination.address, context.dial_seconds)


@dataclass(frozen=True)
class Reading:
    """Words in the server's or agent's answer, and what they mean."""

    words: tuple[str, ...]
    meaning: str
    fix: str


READINGS = (
    Reading(
        ("no agent available", "no tunnels available"),
        "no agent is connected that may dial it",
        "look at the step agents-connected, and at the server's log: its `why=` lists each strategy",
    ),
    Reading(
        ("no route to host", "network is unreachable"),
        "the agent has no route to it",
        "the pod network on the agent's node is not up: look at the CNI's pods on that node",
    ),
    Reading(
        ("connection refused",),
        "the pod is there, but nothing listens: the webhook is not ready",
        "look at the pod's log, and whether the Service's targetPort is the one it listens on",
    ),
    Reading(
        ("no such host", "name or service not known"),
        "the agent cannot resolve the name",
        "give an address: the kube-apiserver always does",
    ),
)
_TIMEOUT = ("i/o timeout", "deadline exceeded", "timed out", "no answer")


def _judge(
    context: DiagnosisContext, destination: Destination, error: tunnel.NoConnectionError
) -> CheckResult:
    said = str(error)
    if isinstance(error, tunnel.WrongProtocolError):
        return failed(f"the server speaks another protocol: {said}", apiserver.LAY[context.plan.flavour])
    for reading in READINGS:
        if any(word in said.lower() for word in reading.words):
            return failed(f"{destination}: {reading.meaning} ({said})", reading.fix)
    if any(word in said.lower() for word in _TIMEOUT):
        return _silence(context, destination, said)
    return failed(f"{destination}: {said}", "look at the agent's log: `bootbridge gather` collects it")


def _silence(context: DiagnosisContext, destination: Destination, said: str) -> CheckResult:
    """Packets get lost: by a policy if one selects the pod, else for want of a way there or back."""
    policies = targets.policies_on(context.cluster, destination) if context.cluster else []
    if policies:
        named = ", ".join(policies)
        fix = f"let {named} allow TCP {destination.port} from the namespace {context.plan.namespace}"
        return failed(f"{destination}: no answer ({said}), and a NetworkPolicy guards it: {named}", fix)
    fix = (
        "no NetworkPolicy selects it, so there is no way there or back: "
        "look at the CNI's pods on both nodes, and for a firewall between them"
    )
    return failed(f"{destination}: the agent has no route to it, packets get lost ({said})", fix)


# --- TLS


def tls(context: DiagnosisContext) -> CheckResult:
    """As the kube-apiserver does it: the service's name, and the authority in the caBundle."""
    destination = context.destination
    caller = destination.caller if destination else None
    if destination is None or caller is None:
        return not_run("only a webhook says what certificate to expect")
    try:
        tls_context = ssl.create_default_context(cadata=caller.ca_bundle.decode("ascii", "replace") or None)
    except (ssl.SSLError, ValueError):
        return failed(f"the caBundle of {caller.title} holds no certificate", _ca_fix(caller))
    try:
        with _dialled(context, destination) as connection:
            version = tunnel.greet(connection, tls_context, caller.server_name)
    except ssl.SSLCertVerificationError as error:
        return _mistrusted(caller, error.verify_message)
    except (ssl.SSLError, ConnectionError, tunnel.NoConnectionError) as error:
        fix = "does it speak TLS on that port? See the pod's log"
        return failed(f"{destination} does not speak TLS: {getattr(error, 'reason', '') or error}", fix)
    return passed(f"{version}, its certificate is good for {caller.server_name}")


def _mistrusted(caller: Caller, said: str) -> CheckResult:
    if "expired" in said:
        return failed(f"the webhook's certificate: {said}", "renew it: whoever runs the webhook made it")
    if "mismatch" in said or "not valid for" in said:
        text = f"the webhook's certificate is not for {caller.server_name}: {said}"
        return failed(text, f"issue it for {caller.server_name}")
    return failed(f"the webhook's certificate is not that of its caBundle: {said}", _ca_fix(caller))


def _ca_fix(caller: Caller) -> str:
    return f"put the authority that signed the webhook's certificate into the caBundle of {caller.title}"
