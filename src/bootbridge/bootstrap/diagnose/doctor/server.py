"""The server's hops: its certificates, its process, the socket before it, the port behind it."""

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
from bootbridge.bootstrap.diagnose.doctor import apiserver, tunnel
from bootbridge.bootstrap.diagnose.doctor.context import DiagnosisContext
from bootbridge.bootstrap.diagnose.doctor.programs import Program
from bootbridge.bootstrap.machine import certificates
from bootbridge.bootstrap.plan.plan import Flavour, Protocol
from bootbridge.common import files
from bootbridge.errors import OperatorError

RENEW = {
    Flavour.KUBEADM: "run `bootbridge up` again: it makes all certificates and manifests anew",
    Flavour.OPENSHIFT: "systemctl restart bootkube: it makes all certificates and manifests anew",
}
LOGS = "`crictl ps -a --name konnectivity-server`, then `crictl logs` of it; or `bootbridge gather`"
PORT_SECONDS = 3.0
SETTLED_SECONDS = 2.0
_ABOUT_TIME = ("certificates expire", "certificates are not valid yet")


# --- certificates


def certificate_files(context: DiagnosisContext) -> CheckResult:
    """All there, belonging together, and the keys their owner's alone."""
    plan, host = context.plan, context.host
    paths = plan.paths
    wanted = (paths.ca_cert, paths.server_cert, paths.server_key, paths.agent_cert, paths.agent_key)
    missing = [f"{path} is not there" for path in wanted if not host.exists(path)]
    opened = [
        f"{path} is {host.mode(path):04o}, readable by others"
        for path in (paths.server_key, paths.agent_key)
        if host.exists(path) and host.mode(path) & 0o077
    ]
    if missing or opened:
        return failed("; ".join([*missing, *opened]), RENEW[plan.flavour])
    why = certificates.renewal_reason(
        context.install.certificates(), plan, certificates.addresses_of(_held(context)[1]), context.now
    )
    # Addresses and time are steps of their own.
    faults = [why] if why and not why.startswith(_ABOUT_TIME) else []
    return judged(faults, f"chain and keys below {paths.tls} fit", RENEW[plan.flavour])


def certificate_expiry(context: DiagnosisContext) -> CheckResult:
    held = _held(context)
    ends = min(each.not_valid_after_utc for each in held)
    fix = RENEW[context.plan.flavour]
    if context.now >= ends:
        return failed(f"the certificates expired at {_time(ends)}", fix)
    if context.now < max(each.not_valid_before_utc for each in held):
        return failed("the certificates are not valid yet: this node's clock is behind", "set the clock")
    left = ends - context.now
    if left < context.plan.validity / certificates.RENEWAL_FRACTION:
        return warned(f"the certificates expire soon, at {_time(ends)}", fix)
    return passed(f"until {_time(ends)}")


def certificate_addresses(context: DiagnosisContext) -> CheckResult:
    """Agents dial the node's addresses and expect the certificate to name them."""
    held, wanted = certificates.addresses_of(_held(context)[1]), context.install.addresses
    shown = ", ".join(map(str, held)) or "no address"
    if not wanted:
        return warned(f"it names {shown}; this node's addresses are not clear", "say them with --node-ip")
    missing = [each for each in wanted if each not in held]
    if missing:
        lacks = ", ".join(map(str, missing))
        text = f"the server's certificate names {shown}, but this node is {lacks}"
        return failed(text, RENEW[context.plan.flavour])
    return passed(f"it names {shown}")


def _held(context: DiagnosisContext) -> list[x509.Certificate]:
    """The authority's, the server's, the agents'."""
    paths, found = context.plan.paths, []
    for path in (paths.ca_cert, paths.server_cert, paths.agent_cert):
        try:
            found.append(x509.load_pem_x509_certificate(context.host.read(path) or b""))
        except ValueError:
            hint = RENEW[context.plan.flavour]
            raise OperatorError("is no certificate", subject=path, hint=hint) from None
    return found


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


# --- process and socket


def runs(context: DiagnosisContext) -> CheckResult:
    path = context.plan.paths.server_pod
    if context.server and _stays(context.server):
        return passed(f"process {context.server.pid}")
    if not context.host.exists(path):
        return failed(f"the server does not run: {path} is not there", apiserver.LAY[context.plan.flavour])
    how = "does not stay: it starts and ends, again and again" if context.server else "does not run"
    return failed(f"the server {how}, though the kubelet has {path}", LOGS)


def _stays(program: Program) -> bool:
    """Who has run for a while will; one that has just started is given that while."""
    while (age := program.age) is not None and age < SETTLED_SECONDS:
        time.sleep(0.1)
    return age is not None


def socket(context: DiagnosisContext) -> CheckResult:
    host, path = context.host, context.plan.paths.socket
    restart = "move the static pod away and back, or kill the server: it makes the socket when it starts"
    if not host.exists(path):
        return failed(f"{path} is missing, though the server runs: somebody removed it", restart)
    if not host.path(path).is_socket():
        return failed(f"{path} is no socket", f"remove it; {restart}")
    if not host.socket_accepts(path):
        return failed(f"{path} is stale: nobody answers on it", restart)
    mode = host.mode(path)
    if mode & stat.S_IWOTH:
        return warned(f"{path} is {mode:04o}: every user here may call into the pods", f"chmod o-w {path}")
    return passed(f"{path}, mode {mode:04o}, answers")


def protocol(context: DiagnosisContext) -> CheckResult:
    """What the kube-apiserver speaks is what the server understands; asked on the socket itself."""
    configured = at(apiserver.cluster_connection(context), "proxyProtocol")
    with tunnel.opened(context.host.path(context.plan.paths.socket), PORT_SECONDS) as connection:
        spoken = tunnel.spoken_on(connection)
    if spoken is None:
        return failed("the server hangs up on whoever connects to its socket", LOGS)
    if spoken != configured:
        mode = Protocol(configured).server_mode if configured in list(Protocol) else configured
        text = f"the kube-apiserver speaks {configured}, the server understands {spoken}"
        return failed(text, f"{apiserver.LAY[context.plan.flavour]} (the server needs --mode={mode})")
    return passed(f"both speak {spoken}")


def healthy(context: DiagnosisContext) -> CheckResult:
    port = context.plan.ports.server_health
    status, body = context.host.http_get(port, "/healthz")
    shown = body[:100].decode(errors="replace").strip()
    if status != 200:
        return failed(f"http://localhost:{port}/healthz says {status or 'nothing'}: {shown}", LOGS)
    return passed(f"http://localhost:{port}/healthz says {shown}")


# --- the port


def agent_port(context: DiagnosisContext) -> CheckResult:
    """A TLS greeting as an agent makes it, with the agents' own certificate, on each address."""
    port = context.plan.ports.agent
    addresses = context.install.addresses or certificates.addresses_of(_held(context)[1])
    faults = [
        f"{each} port {port}: {why}" for each in addresses if (why := _greeted(context, str(each), port))
    ]
    shown = ", ".join(map(str, addresses))
    fix = f"look for what is in the way on this node: `ss -lntp`, `nft list ruleset`; then {LOGS}"
    return judged(faults, f"TCP {port} on {shown} takes the agents' certificate, seen from this node", fix)


def _greeted(context: DiagnosisContext, address: str, port: int) -> str:
    """Why an agent would not get in; empty if it would."""
    try:
        tls = _agent_tls(context)
        with (
            sockets.create_connection((address, port), timeout=PORT_SECONDS) as connection,
            tls.wrap_socket(connection, server_hostname=address) as speaking,
        ):
            speaking.settimeout(0.3)
            # In TLS 1.3 a refusal of our certificate comes only now; silence is consent.
            speaking.recv(1)
    except TimeoutError as error:
        return "" if "read" in str(error) else "no answer"
    except ssl.SSLCertVerificationError as error:
        return f"the certificate that the server shows: {error.verify_message}"
    except ssl.SSLError as error:
        return f"the server refuses the agents' certificate: {error.reason}"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _agent_tls(context: DiagnosisContext) -> ssl.SSLContext:
    bundle = context.install.certificates()
    assert bundle
    tls = ssl.create_default_context(cadata=bundle.ca_cert.decode())
    tls.set_alpn_protocols(["h2"])
    # ssl loads a key from a file only; below a directory of our own it is nobody else's.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.pem"
        files.write_file(path, files.Asset(bundle.agent.cert_pem + bundle.agent.key_pem, 0o600))
        tls.load_cert_chain(path)
    return tls
