"""Steps of the destination: resolve it, dial it through the tunnel, verify its certificate."""

from __future__ import annotations

import ssl
from contextlib import AbstractContextManager
from dataclasses import dataclass

from bootbridge.bootstrap.diagnose.check.result import CheckResult, at, failed, not_run, passed
from bootbridge.bootstrap.diagnose.doctor import apiserver, targets, tunnel
from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.diagnose.doctor.targets import Destination, ServiceTarget, parse
from bootbridge.bootstrap.plan.plan import Protocol
from bootbridge.kube.kinds import POD

ASK = "give --to HOST:PORT or --webhook NAME to test a pod"


def resolve(context: DiagnosisContext) -> CheckResult:
    """Resolves a name to an address; fails if no pod is ready."""
    requested = context.requested
    if requested is None:
        return _an_agent(context)
    if requested.to:
        context.destination = Destination(*parse(requested.to, "--to"))
        return passed(context.destination.address)
    if context.cluster is None:
        return not_run(f"the cluster is unreachable: {context.no_cluster_because}")
    target = targets.find_service_target(context.cluster, requested.webhook)
    if isinstance(target, str):
        return not_run(target)
    found = targets.pod_of(context.cluster, target)
    if isinstance(found, str):
        fix = f"the webhook itself fails: check its pods (kubectl -n {target.namespace} get pods)"
        return failed(f"the webhook is not ready: {found}", fix)
    context.destination = found
    return passed(f"{target.title} is {found}")


def _an_agent(context: DiagnosisContext) -> CheckResult:
    """Without a given destination: an agent's own pod, which tests the whole tunnel."""
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
        return not_run("no destination")
    try:
        with _dialled(context, context.destination):
            return passed(f"an agent connected to {context.destination}")
    except tunnel.DialError as error:
        return _judge(context, context.destination, error)


def _dialled(
    context: DiagnosisContext, destination: Destination
) -> AbstractContextManager[tunnel.TunnelConnection]:
    path = context.host.path(context.plan.paths.socket)
    protocol = Protocol(str(at(apiserver.cluster_connection(context), "proxyProtocol")))
    return tunnel.dial(path, protocol, destination.address, context.dial_seconds)


@dataclass(frozen=True)
class KnownError:
    """Words in the error of server or agent, their meaning and the fix."""

    words: tuple[str, ...]
    meaning: str
    fix: str


KNOWN_ERRORS = (
    KnownError(
        ("no agent available", "no tunnels available"),
        "no connected agent may dial it",
        "see the step agents-connected, and the server's log, which gives the reason of each strategy",
    ),
    KnownError(
        ("no route to host", "network is unreachable"),
        "the agent has no route to it",
        "the pod network on the agent's node is not up: check the CNI pods on that node",
    ),
    KnownError(
        ("connection refused",),
        "connection refused by the pod: the webhook does not listen yet",
        "check the pod's log, and that the Service's targetPort is the port on which it listens",
    ),
    KnownError(
        ("destination refused by",),
        "the agent's destination policy refuses it",
        "install again with --allow-destinations=NETWORK[:PORT] if agents may dial it",
    ),
    KnownError(
        ("no such host", "name or service not known"),
        "the agent cannot resolve the name",
        "give an address, as the kube-apiserver does",
    ),
)
_TIMEOUT = ("i/o timeout", "deadline exceeded", "timed out", "no answer")


def _judge(context: DiagnosisContext, destination: Destination, error: tunnel.DialError) -> CheckResult:
    message = str(error)
    if isinstance(error, tunnel.ProtocolMismatchError):
        return failed(
            f"protocol mismatch: the server uses another protocol: {message}",
            apiserver.INSTALL[context.plan.flavour],
        )
    for known in KNOWN_ERRORS:
        if any(word in message.lower() for word in known.words):
            return failed(f"{destination}: {known.meaning} ({message})", known.fix)
    if any(word in message.lower() for word in _TIMEOUT):
        return _timed_out(context, destination, message)
    return failed(f"{destination}: {message}", "read the agent's log: `bootbridge gather` collects it")


def _timed_out(context: DiagnosisContext, destination: Destination, message: str) -> CheckResult:
    """Packets are lost: by a NetworkPolicy if one selects the pod, else because a route is missing."""
    policies = targets.policies_on(context.cluster, destination) if context.cluster else []
    if policies:
        named = ", ".join(policies)
        fix = f"allow in {named}: TCP {destination.port} from the namespace {context.plan.namespace}"
        return failed(f"{destination}: timed out ({message}), and a NetworkPolicy selects it: {named}", fix)
    fix = (
        "no NetworkPolicy selects it, so a route is missing: "
        "check the CNI pods on both nodes, and firewalls between them"
    )
    return failed(f"{destination}: timed out, the agent has no route to it ({message})", fix)


# --- TLS


def tls(context: DiagnosisContext) -> CheckResult:
    """Verifies the certificate as the kube-apiserver does: the service's name, and the CA in caBundle."""
    destination = context.destination
    target = destination.target if destination else None
    if destination is None or target is None:
        return not_run("only --webhook defines the expected certificate")
    try:
        tls_context = ssl.create_default_context(cadata=target.ca_bundle.decode("ascii", "replace") or None)
    except (ssl.SSLError, ValueError):
        return failed(f"the caBundle of {target.title} contains no certificate", _ca_fix(target))
    try:
        with _dialled(context, destination) as connection:
            version = tunnel.tls_handshake(connection, tls_context, target.server_name)
    except ssl.SSLCertVerificationError as error:
        return _untrusted(target, error.verify_message)
    except (ssl.SSLError, ConnectionError, tunnel.DialError) as error:
        fix = "check that the pod serves TLS on that port; see its log"
        return failed(
            f"TLS handshake with {destination} failed: {getattr(error, 'reason', '') or error}", fix
        )
    return passed(f"{version}, its certificate is valid for {target.server_name}")


def _untrusted(target: ServiceTarget, message: str) -> CheckResult:
    if "expired" in message:
        return failed(
            f"the webhook's certificate has expired: {message}", "renew it where the webhook is deployed"
        )
    if "mismatch" in message or "not valid for" in message:
        text = f"the webhook's certificate is not valid for {target.server_name}: {message}"
        return failed(text, f"issue it for {target.server_name}")
    return failed(f"the webhook's certificate is not signed by its caBundle: {message}", _ca_fix(target))


def _ca_fix(target: ServiceTarget) -> str:
    return f"put the CA that signed the webhook's certificate into the caBundle of {target.title}"
