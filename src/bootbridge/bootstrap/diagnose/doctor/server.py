"""Steps of the server: its certificates, its process, its socket, and the agents' port."""

from __future__ import annotations

import socket as sockets
import ssl
import stat
import tempfile
import time
from datetime import datetime
from pathlib import Path

from cryptography import x509

from bootbridge.bootstrap.diagnose.check.result import CheckResult, at, failed, judged, passed, warned
from bootbridge.bootstrap.diagnose.doctor import apiserver
from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.diagnose.doctor.processes import NodeProcess
from bootbridge.bootstrap.machine import certificates
from bootbridge.bootstrap.plan.plan import Flavour, Protocol
from bootbridge.common import files
from bootbridge.errors import OperatorError
from bootbridge.frontend_client.frontend import detect_mode
from bootbridge.trust.authority import RENEWAL_FRACTION

RENEW = {
    Flavour.KUBEADM: "run `bootbridge up` again: it replaces all certificates and manifests",
    Flavour.OPENSHIFT: "systemctl restart bootkube: it replaces all certificates and manifests",
}
LOGS = "`crictl ps -a --name konnectivity-server`, then `crictl logs` of it; or `bootbridge gather`"
PORT_SECONDS = 3.0
SETTLED_SECONDS = 2.0
_ABOUT_TIME = ("certificates expire", "certificates are not valid yet")


# --- certificates


def certificate_files(context: DiagnosisContext) -> CheckResult:
    """All files exist and match, and the keys are readable by their owner only."""
    plan, host = context.plan, context.host
    paths = plan.paths
    wanted = (paths.ca_cert, paths.server_cert, paths.server_key, paths.agent_cert, paths.agent_key)
    missing = [f"{path} does not exist" for path in wanted if not host.exists(path)]
    opened = [
        f"{path} has mode {host.mode(path):04o}, readable by others"
        for path in (paths.server_key, paths.agent_key)
        if host.exists(path) and host.mode(path) & 0o077
    ]
    if missing or opened:
        return failed("; ".join([*missing, *opened]), RENEW[plan.flavour])
    why = certificates.renewal_reason(
        context.install.certificates(),
        plan,
        certificates.addresses_of(_certificates(context)[1]),
        context.now,
    )
    # Addresses and validity are separate steps.
    faults = [why] if why and not why.startswith(_ABOUT_TIME) else []
    return judged(faults, f"chain and keys below {paths.tls} match", RENEW[plan.flavour])


def certificate_expiry(context: DiagnosisContext) -> CheckResult:
    held = _certificates(context)
    ends = min(each.not_valid_after_utc for each in held)
    fix = RENEW[context.plan.flavour]
    if context.now >= ends:
        return failed(f"the certificates expired at {_time(ends)}", fix)
    if context.now < max(each.not_valid_before_utc for each in held):
        return failed("the certificates are not valid yet: this node's clock is slow", "set the clock")
    left = ends - context.now
    if left < context.plan.validity / RENEWAL_FRACTION:
        return warned(f"the certificates expire soon, at {_time(ends)}", fix)
    return passed(f"until {_time(ends)}")


def certificate_addresses(context: DiagnosisContext) -> CheckResult:
    """Agents dial the node's addresses and verify them against the certificate."""
    held, wanted = certificates.addresses_of(_certificates(context)[1]), context.install.addresses
    shown = ", ".join(map(str, held)) or "no address"
    if not wanted:
        return warned(
            f"it is valid for {shown}; this node's addresses cannot be determined", "give them with --node-ip"
        )
    missing = [each for each in wanted if each not in held]
    if missing:
        lacks = ", ".join(map(str, missing))
        text = f"the server's certificate is valid for {shown}, but not for this node's {lacks}"
        return failed(text, RENEW[context.plan.flavour])
    return passed(f"valid for {shown}")


def _certificates(context: DiagnosisContext) -> list[x509.Certificate]:
    """Returns the certificates of the CA, the server and the agents."""
    paths, found = context.plan.paths, []
    for path in (paths.ca_cert, paths.server_cert, paths.agent_cert):
        try:
            found.append(x509.load_pem_x509_certificate(context.host.read(path) or b""))
        except ValueError:
            hint = RENEW[context.plan.flavour]
            raise OperatorError("invalid certificate", subject=path, hint=hint) from None
    return found


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


# --- process and socket


def runs(context: DiagnosisContext) -> CheckResult:
    path = context.plan.paths.server_pod
    if context.server and _stays(context.server):
        return passed(f"process {context.server.pid}")
    if not context.host.exists(path):
        return failed(
            f"the server is not running: {path} does not exist", apiserver.INSTALL[context.plan.flavour]
        )
    state = "restarts again and again" if context.server else "is not running"
    return failed(f"the server {state}, although {path} exists", LOGS)


def _stays(program: NodeProcess) -> bool:
    """Whether it keeps running; one that has just started is watched for SETTLED_SECONDS."""
    while (age := program.age) is not None and age < SETTLED_SECONDS:
        time.sleep(0.1)
    return age is not None


def socket(context: DiagnosisContext) -> CheckResult:
    host, path = context.host, context.plan.paths.socket
    restart = "restart the server (move the static pod away and back): it creates the socket at its start"
    if not host.exists(path):
        return failed(f"{path} does not exist, although the server is running: it was removed", restart)
    if not host.path(path).is_socket():
        return failed(f"{path} is not a socket", f"remove it; {restart}")
    if not host.socket_accepts(path):
        return failed(f"{path} is stale: connection refused", restart)
    mode = host.mode(path)
    if mode & stat.S_IWOTH:
        return warned(
            f"{path} has mode {mode:04o}: every user of this node can connect to pods", f"chmod o-w {path}"
        )
    return passed(f"{path}, mode {mode:04o}, accepts connections")


def protocol(context: DiagnosisContext) -> CheckResult:
    """Whether kube-apiserver and server use the same protocol, detected on the socket itself."""
    configured = at(apiserver.cluster_connection(context), "proxyProtocol")
    mode = detect_mode(context.host.path(context.plan.paths.socket), PORT_SECONDS)
    if mode is None:
        return failed("the server closes every connection on its socket", LOGS)
    spoken = next(each for each in Protocol if each.server_mode == mode)
    if spoken != configured:
        wanted = Protocol(configured).server_mode if configured in list(Protocol) else configured
        text = f"protocol mismatch: the kube-apiserver uses {configured}, the server {spoken}"
        return failed(text, f"{apiserver.INSTALL[context.plan.flavour]} (the server needs --mode={wanted})")
    return passed(f"both use {spoken}")


def healthy(context: DiagnosisContext) -> CheckResult:
    port = context.plan.ports.server_health
    status, body = context.host.http_get(port, "/healthz")
    shown = body[:100].decode(errors="replace").strip()
    if status != 200:
        return failed(f"http://localhost:{port}/healthz returned {status or 'no response'}: {shown}", LOGS)
    return passed(f"http://localhost:{port}/healthz returned {shown}")


# --- the port


def agent_port(context: DiagnosisContext) -> CheckResult:
    """A TLS handshake with the agents' certificate, on each address."""
    port = context.plan.ports.agent
    addresses = context.install.addresses or certificates.addresses_of(_certificates(context)[1])
    faults = [
        f"{each} port {port}: {why}"
        for each in addresses
        if (why := _handshake_failure(context, str(each), port))
    ]
    shown = ", ".join(map(str, addresses))
    fix = f"check listeners and firewall of this node: `ss -lntp`, `nft list ruleset`; then {LOGS}"
    return judged(
        faults, f"TCP {port} on {shown} accepts the agents' certificate, tested from this node", fix
    )


def _handshake_failure(context: DiagnosisContext, address: str, port: int) -> str:
    """Returns why an agent could not connect; empty if it could."""
    try:
        tls = _agent_tls(context)
        with (
            sockets.create_connection((address, port), timeout=PORT_SECONDS) as connection,
            tls.wrap_socket(connection, server_hostname=address) as speaking,
        ):
            speaking.settimeout(0.3)
            # In TLS 1.3 the server rejects our certificate only now; no data means that it accepts it.
            speaking.recv(1)
    except TimeoutError as error:
        return "" if "read" in str(error) else "timed out"
    except ssl.SSLCertVerificationError as error:
        return f"invalid server certificate: {error.verify_message}"
    except ssl.SSLError as error:
        return f"the server rejects the agents' certificate: {error.reason}"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _agent_tls(context: DiagnosisContext) -> ssl.SSLContext:
    bundle = context.install.certificates()
    assert bundle
    tls = ssl.create_default_context(cadata=bundle.ca_cert.decode())
    tls.set_alpn_protocols(["h2"])
    # ssl loads a key only from a file; the temporary directory is readable by us only.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.pem"
        files.write_file(path, files.Asset(bundle.agent.cert_pem + bundle.agent.key_pem, 0o600))
        tls.load_cert_chain(path)
    return tls
