"""Checks of a node on which the tunnel is installed."""

from __future__ import annotations

import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from bootbridge.bootstrap.diagnose.check.rendered_files import PRIVATE_KEY, egress_faults
from bootbridge.bootstrap.diagnose.check.result import (
    CheckResult,
    at,
    bypassed,
    failed,
    judged,
    mapping,
    not_run,
    passed,
    run,
    warned,
)
from bootbridge.bootstrap.diagnose.check.tree import PLACEHOLDER
from bootbridge.bootstrap.machine import address, certificates, network
from bootbridge.bootstrap.plan import payload_programs
from bootbridge.bootstrap.plan import record as plan_record
from bootbridge.bootstrap.plan.plan import PATHS, Flavour, IPAddress, Plan
from bootbridge.bootstrap.render import apiserver_manifest, egress_selector
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError

DIAL_SECONDS_MAX = 2.0
REINSTALL = "run bootbridge up again; on OpenShift: systemctl restart bootkube"
SERVER_LOGS = "read the server's log: crictl logs, or bootbridge gather"


@dataclass(frozen=True)
class CheckedNode:
    host: Host
    plan: Plan
    now: datetime

    def data(self, path: str) -> bytes:
        content = self.host.read(path)
        if content is None:
            raise OperatorError("file not found", subject=path, hint=REINSTALL)
        return content


def of_node(root: Path, now: datetime) -> list[CheckResult]:
    """Checks the node whose file system is mounted at `root`; ports and addresses are this machine's."""
    host = Host(root)
    for paths in PATHS.values():
        record = host.read(paths.plan_record)
        if record is not None:
            plan = plan_record.load(record, paths.plan_record)
            found = passed(f"{plan.flavour} on {plan.platform}, {plan.protocol}", "plan-record")
            return [found, *run(CHECKS, CheckedNode(host, plan, now))]
    places = " or ".join(paths.plan_record for paths in PATHS.values())
    fix = "install the tunnel first: bootbridge up, or boot from an injected ignition file"
    return [failed(f"the tunnel is not installed on this node: {places} not found", fix, "plan-record")]


# --- the server


def _static_pod(node: CheckedNode) -> CheckResult:
    path = node.plan.paths.server_pod
    data = node.data(path)
    pod = mapping(data, path)
    left = [match.decode() for match in PLACEHOLDER.findall(data)]
    faults = [f"placeholder {name} was not replaced" for name in dict.fromkeys(left)]
    if at(pod, "metadata", "name") != node.plan.server_pod_name:
        faults.append(f"metadata.name is {at(pod, 'metadata', 'name')}, not {node.plan.server_pod_name}")
    return judged(faults, path, REINSTALL)


def _socket(node: CheckedNode) -> CheckResult:
    path = node.plan.paths.socket
    if not node.host.exists(path):
        return failed(f"{path} does not exist: the server is not running", SERVER_LOGS)
    if not node.host.path(path).is_socket():
        return failed(f"{path} is not a socket", f"remove it; {SERVER_LOGS}")
    mode = node.host.mode(path)
    if mode & stat.S_IWOTH:
        return failed(
            f"{path} has mode {mode:04o}: every user of this node can connect to pods", f"chmod o-w {path}"
        )
    if not node.host.socket_accepts(path):
        return failed(f"{path} does not accept connections", SERVER_LOGS)
    return passed(f"{path}, mode {mode:04o}, accepts connections")


def _agent_port(node: CheckedNode) -> CheckResult:
    """Dials the port as an agent does, on every address in the certificate."""
    port, addresses = node.plan.ports.agent, _addresses_in_certificate(node)
    if not addresses:
        return not_run("the server's certificate contains no address")
    failures = [f"{each}: {reason}" for each in addresses if (reason := _dial(str(each), port))]
    shown = ", ".join(map(str, addresses))
    return judged(failures, f"TCP {port} accepts connections on {shown}", SERVER_LOGS)


def _dial(host: str, port: int) -> str:
    """Returns why the connection failed; empty if it did not."""
    try:
        socket.create_connection((host, port), timeout=DIAL_SECONDS_MAX).close()
    except OSError as error:
        return f"TCP {port}: {error.strerror or error}"
    return ""


def _health_port(node: CheckedNode) -> CheckResult:
    """Programs of older releases cannot bind it to loopback."""
    port, paths = node.plan.ports.server_health, node.plan.paths
    flag = payload_programs.HEALTH_FLAG
    if f"proxy-server {flag}" not in (node.host.read(paths.program_flags) or b"").decode(errors="replace"):
        return passed(f"the server binds port {port} to loopback")
    if notes := (node.host.read(paths.notes) or b"").decode(errors="replace").strip():
        return warned(notes, f"close port {port} in this node's firewall")
    return passed(f"the image does not know --{flag}: nft closes port {port} to other machines")


def _health(page: str) -> Callable[[CheckedNode], CheckResult]:
    def check(node: CheckedNode) -> CheckResult:
        port = node.plan.ports.server_health
        status, body = node.host.http_get(port, page)
        answer = body[:100].decode(errors="replace").strip()
        shown = f"http://localhost:{port}{page} returned {status or 'no response'}: {answer}"
        return passed(shown) if status == 200 else failed(shown, _HEALTH_FIXES[page])

    return check


_HEALTH_FIXES = {
    "/healthz": SERVER_LOGS,
    "/readyz": "no agent is connected: check the agents' pods and the firewall (bootbridge doctor)",
}


# --- the certificates


def _certificates(node: CheckedNode) -> CheckResult:
    plan = node.plan
    bundle = certificates.load(node.host.root, plan)
    try:
        networks = plan.networks
        wanted = address.choose(plan.node_ips, networks.machine, network.observe(), networks.families)
    except OperatorError as error:
        return failed(f"this node's addresses cannot be determined: {error.args[0]}", error.hint)
    reason = certificates.renewal_reason(bundle, plan, wanted, node.now)
    if reason.startswith("certificates expire soon"):
        return warned(reason, REINSTALL)
    shown = ", ".join(map(str, wanted))
    return judged([reason] if reason else [], f"chain, keys and validity are correct; for {shown}", REINSTALL)


def _certificate_modes(node: CheckedNode) -> CheckResult:
    paths, host = node.plan.paths, node.host
    open_keys = [
        f"{path} has mode {host.mode(path):04o}"
        for path in (paths.server_key, paths.agent_key)
        if host.exists(path) and host.mode(path) & 0o077
    ]
    missing = [
        f"{path} does not exist" for path in (paths.server_key, paths.agent_key) if not host.exists(path)
    ]
    return judged(
        [*missing, *open_keys], "only the owner can read the keys", f"chmod 600 them, or: {REINSTALL}"
    )


def _ca_key_gone(node: CheckedNode) -> CheckResult:
    """The CA key would allow its holder to issue agent certificates."""
    paths, host = node.plan.paths, node.host
    expected = {paths.server_key, paths.agent_key}
    files = [
        path for path in host.files_below(paths.state) if path not in expected and host.path(path).is_file()
    ]
    found = [path for path in files if PRIVATE_KEY.search(host.read(path) or b"")]
    faults = [f"{path} contains a private key" for path in found]
    return judged(faults, f"no other private key below {paths.state}", f"remove it, then: {REINSTALL}")


def _addresses_in_certificate(node: CheckedNode) -> Sequence[IPAddress]:
    path = node.plan.paths.server_cert
    try:
        found = certificates.addresses_of(x509.load_pem_x509_certificate(node.data(path)))
    except ValueError as error:
        raise OperatorError("invalid certificate", subject=path, hint=REINSTALL) from error
    return found


# --- the kube-apiserver


def _egress(node: CheckedNode) -> CheckResult:
    path = node.plan.paths.egress_config
    if node.host.exists(node.plan.paths.bypass):
        return bypassed(path)
    faults = egress_faults(mapping(node.data(path), path), node.plan)
    return judged(faults, f"{path}: cluster traffic goes to the socket", REINSTALL)


def _apiserver(node: CheckedNode) -> CheckResult:
    """OpenShift sets the flag in a configuration file, kubeadm on the command line."""
    paths, flag = node.plan.paths, egress_selector.FLAG
    wanted = f"--{flag}={paths.egress_config_seen_by_apiserver}"
    if node.plan.flavour is Flavour.OPENSHIFT:
        path = node.plan.paths.apiserver_config
        if not node.host.exists(path):
            return not_run(f"bootkube.sh has not rendered {path} yet")
        given = at(mapping(node.data(path), path), "apiServerArguments", flag)
        is_set = given == [paths.egress_config_seen_by_apiserver]
    else:
        path = paths.apiserver_pod
        if not node.host.exists(path):
            return not_run(f"kubeadm has not written {path} yet")
        is_set = wanted in apiserver_manifest.command_line(node.data(path), path)
    return judged([] if is_set else [f"{path} does not set {wanted}"], f"{path} sets {wanted}", REINSTALL)


CHECKS: dict[str, Callable[[CheckedNode], CheckResult]] = {
    "certificates": _certificates,
    "key-modes": _certificate_modes,
    "ca-key-gone": _ca_key_gone,
    "egress-config": _egress,
    "server-pod": _static_pod,
    "socket": _socket,
    "agent-port": _agent_port,
    "health-port": _health_port,
    "server-healthy": _health("/healthz"),
    "server-ready": _health("/readyz"),
    "kube-apiserver": _apiserver,
}
