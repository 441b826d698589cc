"""The agents' hop: they are wanted, they have the right certificates, they run, they are connected."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from cryptography import x509

from bootbridge.bootstrap.diagnose.check.result import CheckResult, at, failed, not_run, passed, warned
from bootbridge.bootstrap.diagnose.doctor import apiserver
from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.diagnose.doctor.targets import why_not_ready
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
        return not_run(f"the cluster cannot be asked: {context.no_cluster_because}")
    found = cluster.get(Ref(DAEMON_SET, plan.daemonset_name, plan.namespace))
    name = f"DaemonSet {plan.namespace}/{plan.daemonset_name}"
    if found is None:
        return failed(f"{name} is not there: no node runs an agent", apiserver.LAY[plan.flavour])
    wanted = at(dict(found), "status", "desiredNumberScheduled") or 0
    if not wanted:
        fix = "wait for nodes to join (kubectl get nodes); the kube-controller-manager must run, too"
        return failed(f"{name} wants no agent: there is no node for one yet", fix)
    return passed(f"{name} wants {wanted} agents")


def secret(context: DiagnosisContext) -> CheckResult:
    """The agents' certificates are the cluster's copy of those on this node."""
    plan, bundle = context.plan, context.install.certificates()
    if context.cluster is None or bundle is None:
        return not_run(f"the cluster cannot be asked: {context.no_cluster_because}")
    name = f"Secret {plan.namespace}/{plan.secret_name}"
    found = context.cluster.get(Ref(SECRET, plan.secret_name, plan.namespace))
    fix = f"{apiserver.LAY[plan.flavour]}; the agents start anew with it"
    if found is None:
        return failed(f"{name} is not there: agents cannot start without their certificates", fix)
    held = {key: _decoded(value) for key, value in (found.get("data") or {}).items()}
    if held.get("ca.crt", b"").strip() != bundle.ca_cert.strip():
        return failed(f"{name} holds another authority than the server's: agents and server mistrust", fix)
    try:
        certificate = x509.load_pem_x509_certificate(held.get("tls.crt", b""))
    except ValueError:
        return failed(f"{name}: tls.crt is no certificate", fix)
    if context.now >= certificate.not_valid_after_utc:
        return failed(f"{name}: the agents' certificate expired at {certificate.not_valid_after_utc}", fix)
    if not _issued_by(bundle.ca_cert, certificate):
        return failed(f"{name}: the server's authority has not signed the agents' certificate", fix)
    return passed(f"{name} has the server's authority and a certificate of it")


def pods(context: DiagnosisContext) -> CheckResult:
    """They are made, placed, pulled and started; one that works is enough to go on."""
    if context.cluster is None:
        return not_run(f"the cluster cannot be asked: {context.no_cluster_because}")
    found = _agent_pods(context)
    if not found:
        said = _event_about(context, "FailedCreate") or "nothing says why"
        return failed(f"no agent's pod is made: {said}", _creation_fix(context, said))
    troubled = {pod["metadata"]["name"]: why for pod in found if (why := why_not_ready(pod))}
    shown = "; ".join(f"{name}: {why}" for name, why in list(troubled.items())[:3])
    if len(troubled) < len(found):
        ready = f"{len(found) - len(troubled)} of {len(found)} agents' pods are ready"
        return warned(f"{ready}; {shown}", _pod_fix(shown)) if troubled else passed(ready)
    if all("not ready" in why for why in troubled.values()):
        # They run. What keeps them from being ready is the next step's matter.
        return passed(f"{len(found)} agents' pods run, none is ready")
    return failed(f"no agent runs: {shown}", _pod_fix(shown))


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
    """Who is connected, and how many; ours says both, the original only the number."""
    port = context.plan.ports.server_health
    status, body = context.host.http_get(port, "/status")
    if status == 200:
        try:
            ids = sorted(str(agent["id"]) for agent in json.loads(body)["agents"])
            return ids, len(ids)
        except (ValueError, KeyError, TypeError):
            pass
    for metrics_port in (port, context.plan.ports.server_admin):
        status, body = context.host.http_get(metrics_port, "/metrics")
        if status == 200 and (found := READY_METRIC.search(body)):
            return [], int(float(found[1]))
    return [], None


# --- why no agent is connected


def _why_none(context: DiagnosisContext) -> CheckResult:
    """The agents' own logs know best; without them the firewall is the first suspect."""
    port = context.plan.ports.agent
    for pod in _agent_pods(context)[:3] if context.cluster else ():
        said = _last_complaint(context, pod)
        if said:
            name = pod["metadata"]["name"]
            return failed(f"no agent is connected; {name} says: {said}", _link_fix(context, said))
    addresses = " ".join(f"--from-node {each}" for each in context.install.addresses)
    fix = f"try TCP {port} from a node: `bootbridge doctor {addresses}`; {_firewall(context)}"
    return failed(f"no agent is connected: TCP {port} may be filtered on the way from the nodes", fix)


def _link_fix(context: DiagnosisContext, said: str) -> str:
    text, port = said.lower(), context.plan.ports.agent
    if any(word in text for word in ("certificate", "x509", "tls", "handshake")):
        return f"agent and server mistrust each other: {apiserver.LAY[context.plan.flavour]}"
    if "refused" in text:
        return f"the node answers, but not on TCP {port}: a firewall rejects it, or the address is another's"
    return f"TCP {port} is filtered between the nodes and this one: {_firewall(context)}"


def _firewall(context: DiagnosisContext) -> str:
    plan = context.plan
    infra = f" --infra-id {plan.infra_id}" if plan.infra_id else ""
    return f"`bootbridge firewall show --platform {plan.platform}{infra}` says what to open"


def _last_complaint(context: DiagnosisContext, pod: Json) -> str:
    """The last line of an agent's log that tells of its way to the server."""
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
    said = [str(event.get("message")) for event in events if event.get("reason") == reason]
    return said[-1][:400] if said else ""


def _creation_fix(context: DiagnosisContext, said: str) -> str:
    if any(word in said.lower() for word in _DENIED):
        namespace = context.plan.namespace
        return f"admission refuses the pods: give the namespace {namespace} its labels back (`bootbridge up`)"
    return "the kube-controller-manager makes them: look whether it runs, and at its log"


def _pod_fix(said: str) -> str:
    if "ImagePull" in said or "ErrImage" in said:
        return "the nodes cannot pull the image: check its name, the registry and the pull secret"
    if "not scheduled" in said:
        return "the scheduler says why; agents tolerate every taint, so look at resources and nodeSelector"
    if "CrashLoop" in said or "ended with" in said:
        return "kubectl logs --previous of such a pod says why"
    return "kubectl describe one of these pods"


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(str(value))
    except binascii.Error:
        return b""


def _issued_by(ca: bytes, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    except Exception:  # cryptography has one class of error for each way in which it can fail
        return False
    return True
