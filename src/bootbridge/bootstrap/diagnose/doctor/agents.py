"""Steps of the agents: scheduled, with the right certificates, running, connected."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from cryptography import x509

from bootbridge.bootstrap.diagnose.check.result import CheckResult, at, failed, not_run, passed, warned
from bootbridge.bootstrap.diagnose.doctor import apiserver
from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.diagnose.doctor.targets import why_not_ready
from bootbridge.bootstrap.install.connected_agents import connected_agents
from bootbridge.errors import OperatorError
from bootbridge.kube.kinds import DAEMON_SET, EVENT, POD, SECRET
from bootbridge.kube.objects import Ref

Json = dict[str, Any]
LOG_LINES = 200
READY_METRIC = re.compile(
    rb"^konnectivity_network_proxy_server_ready_backend_connections\S* ([0-9.e+]+)$", re.M
)
_DENIED = ("unable to validate against any security context constraint", "violates podsecurity", "forbidden")


def daemonset(context: DiagnosisContext) -> CheckResult:
    plan, cluster = context.plan, context.cluster
    if cluster is None:
        return not_run(f"the cluster is unreachable: {context.no_cluster_because}")
    found = cluster.get(Ref(DAEMON_SET, plan.daemonset_name, plan.namespace))
    name = f"DaemonSet {plan.namespace}/{plan.daemonset_name}"
    if found is None:
        return failed(f"{name} does not exist: no node runs an agent", apiserver.INSTALL[plan.flavour])
    wanted = at(dict(found), "status", "desiredNumberScheduled") or 0
    if not wanted:
        fix = "wait for nodes to join (kubectl get nodes); the kube-controller-manager must be running"
        return failed(f"{name} has scheduled no agent: there are no nodes yet", fix)
    return passed(f"{name} has scheduled {wanted} agents")


def secret(context: DiagnosisContext) -> CheckResult:
    """The Secret must contain the agents' certificate of this node."""
    plan, bundle = context.plan, context.install.certificates()
    if context.cluster is None or bundle is None:
        return not_run(f"the cluster is unreachable: {context.no_cluster_because}")
    name = f"Secret {plan.namespace}/{plan.secret_name}"
    found = context.cluster.get(Ref(SECRET, plan.secret_name, plan.namespace))
    fix = f"{apiserver.INSTALL[plan.flavour]}; the agents are then restarted"
    if found is None:
        return failed(f"{name} does not exist: agents cannot start without their certificate", fix)
    held = {key: _decoded(value) for key, value in (found.get("data") or {}).items()}
    if held.get("ca.crt", b"").strip() != bundle.ca_cert.strip():
        return failed(f"{name} contains another CA than the server's", fix)
    try:
        certificate = x509.load_pem_x509_certificate(held.get("tls.crt", b""))
    except ValueError:
        return failed(f"{name}: tls.crt is not a valid certificate", fix)
    if context.now >= certificate.not_valid_after_utc:
        return failed(f"{name}: the agents' certificate expired at {certificate.not_valid_after_utc}", fix)
    if not _issued_by(bundle.ca_cert, certificate):
        return failed(f"{name}: the agents' certificate is not signed by the server's CA", fix)
    return passed(f"{name} contains the server's CA and a certificate signed by it")


def pods(context: DiagnosisContext) -> CheckResult:
    """Pods are created, scheduled, pulled and started; one that is ready is enough to continue."""
    if context.cluster is None:
        return not_run(f"the cluster is unreachable: {context.no_cluster_because}")
    found = _agent_pods(context)
    if not found:
        event = _event_about(context, "FailedCreate") or "no event gives a reason"
        return failed(f"no agent pod was created: {event}", _creation_fix(context, event))
    troubled = {pod["metadata"]["name"]: why for pod in found if (why := why_not_ready(pod))}
    shown = "; ".join(f"{name}: {why}" for name, why in list(troubled.items())[:3])
    if len(troubled) < len(found):
        ready = f"{len(found) - len(troubled)} of {len(found)} agent pods are ready"
        return warned(f"{ready}; {shown}", _pod_fix(shown)) if troubled else passed(ready)
    if all("not ready" in why for why in troubled.values()):
        # They run; the next step finds out why they are not ready.
        return passed(f"{len(found)} agent pods are running, none is ready")
    return failed(f"no agent is running: {shown}", _pod_fix(shown))


def connected(context: DiagnosisContext) -> CheckResult:
    ids, count = server_agents(context)
    if count:
        named = f": {', '.join(ids[:10])}{' …' if len(ids) > 10 else ''}" if ids else ""
        return passed(f"{count} connected{named}")
    if count is None:
        status, _ = context.host.http_get(context.plan.ports.server_health, "/readyz")
        if status == 200:
            return passed("the server is ready, so an agent is connected")
    return _why_none(context)


def server_agents(context: DiagnosisContext) -> tuple[list[str], int | None]:
    """Returns the connected agents' IDs and their number; the Go server reports only the number."""
    ids = connected_agents(context.host, context.plan)
    if ids is not None:
        return ids, len(ids)
    for port in (context.plan.ports.server_health, context.plan.ports.server_admin):
        status, body = context.host.http_get(port, "/metrics")
        if status == 200 and (found := READY_METRIC.search(body)):
            return [], int(float(found[1]))
    return [], None


# --- why no agent is connected


def _why_none(context: DiagnosisContext) -> CheckResult:
    """The reason is in the agents' logs; without them it is probably the firewall."""
    port = context.plan.ports.agent
    for pod in _agent_pods(context)[:3] if context.cluster else ():
        line = _last_error(context, pod)
        if line:
            name = pod["metadata"]["name"]
            return failed(f"no agent is connected; log of {name}: {line}", _connection_fix(context, line))
    addresses = " ".join(f"--from-node {each}" for each in context.install.addresses)
    fix = f"test TCP {port} from a node: `bootbridge doctor {addresses}`; {_firewall(context)}"
    return failed(f"no agent is connected: a firewall may block TCP {port} from the nodes", fix)


def _connection_fix(context: DiagnosisContext, line: str) -> str:
    text, port = line.lower(), context.plan.ports.agent
    if any(word in text for word in ("certificate", "x509", "tls", "handshake")):
        return f"agent and server reject each other's certificate: {apiserver.INSTALL[context.plan.flavour]}"
    if "refused" in text:
        return f"connection refused on TCP {port}: a firewall rejects it, or it is another machine's address"
    return f"a firewall blocks TCP {port} between the nodes and this one: {_firewall(context)}"


def _firewall(context: DiagnosisContext) -> str:
    plan = context.plan
    infra = f" --infra-id {plan.infra_id}" if plan.infra_id else ""
    return f"`bootbridge firewall show --platform {plan.platform}{infra}` lists what to open"


def _last_error(context: DiagnosisContext, pod: Json) -> str:
    """Returns the last line of an agent's log about a failed connection to the server."""
    assert context.cluster
    ref = Ref(POD, pod["metadata"]["name"], pod["metadata"]["namespace"])
    try:
        log = context.cluster.log(ref, context.plan.daemonset_name, lines=LOG_LINES)
    except OperatorError:
        return ""
    signs = ("not reached", "cannot connect", "error dialing", "connection error", "timeout", "certificate")
    lines = [line.strip() for line in log.decode("utf-8", "replace").splitlines()]
    return next((line[-300:] for line in reversed(lines) if any(sign in line.lower() for sign in signs)), "")


def _agent_pods(context: DiagnosisContext) -> list[Json]:
    assert context.cluster
    return context.cluster.list(POD, context.plan.namespace, context.plan.selector)


def _event_about(context: DiagnosisContext, reason: str) -> str:
    assert context.cluster
    try:
        events = context.cluster.list(EVENT, context.plan.namespace)
    except OperatorError:
        return ""
    messages = [str(event.get("message")) for event in events if event.get("reason") == reason]
    return messages[-1][:400] if messages else ""


def _creation_fix(context: DiagnosisContext, event: str) -> str:
    if any(word in event.lower() for word in _DENIED):
        namespace = context.plan.namespace
        return f"admission denies the pods: restore the labels of namespace {namespace} (`bootbridge up`)"
    return "the kube-controller-manager creates them: check that it is running, and its log"


def _pod_fix(reason: str) -> str:
    if "ImagePull" in reason or "ErrImage" in reason:
        return "the nodes cannot pull the image: check its name, the registry and the pull secret"
    if "not scheduled" in reason:
        return "see the scheduler's message; agents tolerate all taints, so check resources and nodeSelector"
    if "CrashLoop" in reason or "exited with" in reason:
        return "read `kubectl logs --previous` of such a pod"
    return "run `kubectl describe` on one of these pods"


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(str(value))
    except binascii.Error:
        return b""


def _issued_by(ca: bytes, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    except Exception:  # cryptography raises a different exception for each cause
        return False
    return True
