"""The last hop: from an agent to the pod, and whether it is the one that was meant."""

from __future__ import annotations

import ssl
from contextlib import AbstractContextManager
from dataclasses import dataclass

from bootbridge.bootstrap.diagnose.check.finding import Outcome, at, failed, not_run, passed
from bootbridge.bootstrap.diagnose.doctor import apiserver, targets, tunnel
from bootbridge.bootstrap.diagnose.doctor.context import Way
from bootbridge.bootstrap.diagnose.doctor.targets import Caller, Destination, parse
from bootbridge.bootstrap.plan.plan import Protocol
from bootbridge.kube.objects import POD

ASK = "say --to HOST:PORT or --webhook NAME to walk on to a pod"


def resolve(way: Way) -> Outcome:
    """From a name to an address; a pod that is not ready ends the walk here."""
    goal = way.goal
    if goal is None:
        return _an_agent(way)
    if goal.to:
        way.destination = Destination(*parse(goal.to, "--to"))
        return passed(way.destination.address)
    if way.cluster is None:
        return not_run(f"the cluster cannot be asked: {way.no_cluster_because}")
    caller = targets.caller_named(way.cluster, goal.webhook)
    if isinstance(caller, str):
        return not_run(caller)
    found = targets.pod_of(way.cluster, caller)
    if isinstance(found, str):
        fix = f"this is the webhook's own: look at its pods (kubectl -n {caller.namespace} get pods)"
        return failed(f"the webhook is not ready: {found}", fix)
    way.destination = found
    return passed(f"{caller.title} is {found}")


def _an_agent(way: Way) -> Outcome:
    """Nobody said where to: an agent's own pod shows that the whole way carries."""
    plan = way.site.plan
    if way.cluster is None or plan.host_network:
        return not_run(ASK)
    for pod in way.cluster.list(POD, plan.namespace, plan.selector):
        address = at(pod, "status", "podIP")
        if address and not targets.why_not_ready(pod):
            name = pod["metadata"]["name"]
            way.destination = Destination(address, plan.ports.agent_health, None, plan.namespace, name)
            return passed(f"{way.destination}; {ASK}")
    return not_run(ASK)


def dial(way: Way) -> Outcome:
    if way.destination is None:
        return not_run("there is no destination")
    try:
        with _dialled(way, way.destination):
            return passed(f"an agent reaches {way.destination}")
    except tunnel.NoConnectionError as error:
        return _judge(way, way.destination, error)


def _dialled(way: Way, destination: Destination) -> AbstractContextManager[tunnel.Connection]:
    path = way.site.host.path(way.site.plan.paths.socket)
    spoken = Protocol(str(at(apiserver.cluster_connection(way), "proxyProtocol")))
    return tunnel.dialled(path, spoken, destination.address, way.dial_seconds)


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


def _judge(way: Way, destination: Destination, error: tunnel.NoConnectionError) -> Outcome:
    said = str(error)
    if isinstance(error, tunnel.WrongProtocolError):
        return failed(f"the server speaks another protocol: {said}", apiserver.LAY[way.site.plan.flavour])
    for reading in READINGS:
        if any(word in said.lower() for word in reading.words):
            return failed(f"{destination}: {reading.meaning} ({said})", reading.fix)
    if any(word in said.lower() for word in _TIMEOUT):
        return _silence(way, destination, said)
    return failed(f"{destination}: {said}", "look at the agent's log: `bootbridge gather` collects it")


def _silence(way: Way, destination: Destination, said: str) -> Outcome:
    """Packets get lost: by a policy if one selects the pod, else for want of a way there or back."""
    policies = targets.policies_on(way.cluster, destination) if way.cluster else []
    if policies:
        named = ", ".join(policies)
        fix = f"let {named} allow TCP {destination.port} from the namespace {way.site.plan.namespace}"
        return failed(f"{destination}: no answer ({said}), and a NetworkPolicy guards it: {named}", fix)
    fix = (
        "no NetworkPolicy selects it, so there is no way there or back: "
        "look at the CNI's pods on both nodes, and for a firewall between them"
    )
    return failed(f"{destination}: the agent has no route to it, packets get lost ({said})", fix)


# --- TLS


def tls(way: Way) -> Outcome:
    """As the kube-apiserver does it: the service's name, and the authority in the caBundle."""
    destination = way.destination
    caller = destination.caller if destination else None
    if destination is None or caller is None:
        return not_run("only a webhook says what certificate to expect")
    try:
        context = ssl.create_default_context(cadata=caller.ca_bundle.decode("ascii", "replace") or None)
    except (ssl.SSLError, ValueError):
        return failed(f"the caBundle of {caller.title} holds no certificate", _ca_fix(caller))
    try:
        with _dialled(way, destination) as connection:
            version = tunnel.greet(connection, context, caller.server_name)
    except ssl.SSLCertVerificationError as error:
        return _mistrusted(caller, error.verify_message)
    except (ssl.SSLError, ConnectionError, tunnel.NoConnectionError) as error:
        fix = "does it speak TLS on that port? See the pod's log"
        return failed(f"{destination} does not speak TLS: {getattr(error, 'reason', '') or error}", fix)
    return passed(f"{version}, its certificate is good for {caller.server_name}")


def _mistrusted(caller: Caller, said: str) -> Outcome:
    if "expired" in said:
        return failed(f"the webhook's certificate: {said}", "renew it: whoever runs the webhook made it")
    if "mismatch" in said or "not valid for" in said:
        text = f"the webhook's certificate is not for {caller.server_name}: {said}"
        return failed(text, f"issue it for {caller.server_name}")
    return failed(f"the webhook's certificate is not that of its caBundle: {said}", _ca_fix(caller))


def _ca_fix(caller: Caller) -> str:
    return f"put the authority that signed the webhook's certificate into the caBundle of {caller.title}"
