"""Steps of the destination: resolve it, dial it through the tunnel, verify its certificate."""

from __future__ import annotations

import asyncio
import ssl

from bootbridge.bootstrap.diagnose.check.result import CheckResult, at, failed, not_run, passed
from bootbridge.bootstrap.diagnose.doctor import apiserver, targets
from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.diagnose.doctor.targets import Destination, ServiceTarget, parse
from bootbridge.bootstrap.plan.plan import Protocol
from bootbridge.frontend_client.call import DialError, FrontendMode, ProtocolMismatchError
from bootbridge.frontend_client.dial_problem import DialProblem, problem_of
from bootbridge.frontend_client.frontend import FrontendUnreachable, UnixFrontend
from bootbridge.frontend_client.tunnel_stream import ConnectionCutError, TunnelStream, open_tunnel
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
        asyncio.run(_connect(context, context.destination))
    except FrontendUnreachable as error:
        return _judge(context, context.destination, DialError(str(error)))
    except DialError as error:
        return _judge(context, context.destination, error)
    return passed(f"an agent connected to {context.destination}")


async def _connect(context: DiagnosisContext, destination: Destination) -> None:
    stream = await _open(context, destination)
    await stream.close()


async def _open(context: DiagnosisContext, destination: Destination) -> TunnelStream:
    protocol = Protocol(str(at(apiserver.cluster_connection(context), "proxyProtocol")))
    path = context.host.path(context.plan.paths.socket)
    frontend = UnixFrontend(path, FrontendMode(protocol.server_mode))
    return await open_tunnel(frontend, destination.address, context.dial_seconds)


# Meaning and fix.
_EXPLANATIONS = {
    DialProblem.NO_AGENT: (
        "no connected agent may dial it",
        "see the step agents-connected, and the server's log, which gives the reason of each strategy",
    ),
    DialProblem.NO_ROUTE: (
        "the agent has no route to it",
        "the pod network on the agent's node is not up: check the CNI pods on that node",
    ),
    DialProblem.REFUSED: (
        "connection refused by the pod: the webhook does not listen yet",
        "check the pod's log, and that the Service's targetPort is the port on which it listens",
    ),
    DialProblem.FORBIDDEN: (
        "the agent's destination policy refuses it",
        "install again with --allow-destinations=NETWORK[:PORT] if agents may dial it",
    ),
    DialProblem.NAME_NOT_FOUND: (
        "the agent cannot resolve the name",
        "give an address, as the kube-apiserver does",
    ),
}


def _judge(context: DiagnosisContext, destination: Destination, error: DialError) -> CheckResult:
    message = str(error)
    if isinstance(error, ProtocolMismatchError):
        return failed(
            f"protocol mismatch: the server uses another protocol: {message}",
            apiserver.INSTALL[context.plan.flavour],
        )
    problem = problem_of(message)
    if problem is DialProblem.TIMED_OUT:
        return _timed_out(context, destination, message)
    if problem in _EXPLANATIONS:
        meaning, fix = _EXPLANATIONS[problem]
        return failed(f"{destination}: {meaning} ({message})", fix)
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
        version = asyncio.run(_handshake(context, destination, tls_context, target.server_name))
    except ssl.SSLCertVerificationError as error:
        return _untrusted(target, error.verify_message)
    except (ssl.SSLError, ConnectionError, DialError, ConnectionCutError, FrontendUnreachable) as error:
        fix = "check that the pod serves TLS on that port; see its log"
        return failed(
            f"TLS handshake with {destination} failed: {getattr(error, 'reason', '') or error}", fix
        )
    return passed(f"{version}, its certificate is valid for {target.server_name}")


async def _handshake(
    context: DiagnosisContext, destination: Destination, tls_context: ssl.SSLContext, name: str
) -> str:
    """Performs a TLS handshake through the tunnel and returns its version."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = tls_context.wrap_bio(incoming, outgoing, server_hostname=name)
    stream = await _open(context, destination)
    try:
        async with asyncio.timeout(context.dial_seconds):
            while not await _shake_hands(tls, incoming, outgoing, stream):
                pass
    except TimeoutError:
        raise ConnectionError(f"timed out after {context.dial_seconds:g}s") from None
    finally:
        await stream.close()
    return str(tls.version())


async def _shake_hands(
    tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, stream: TunnelStream
) -> bool:
    """Takes one step; True when the handshake is complete."""
    try:
        tls.do_handshake()
        return True
    except ssl.SSLWantReadError:
        if out := outgoing.read():
            await stream.write(out)
        data = await stream.read()
        if not data:
            raise ConnectionError("connection closed during the TLS handshake") from None
        incoming.write(data)
        return False


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
