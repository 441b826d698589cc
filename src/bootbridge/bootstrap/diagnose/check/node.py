"""Checks of a node on which the tunnel runs. Everything is only looked at."""

from __future__ import annotations

import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from bootbridge.bootstrap.diagnose.check.result import (
    CheckResult,
    at,
    failed,
    judged,
    mapping,
    not_run,
    passed,
    run,
    warned,
)
from bootbridge.bootstrap.diagnose.check.tree import PLACEHOLDER, PRIVATE_KEY, egress_faults
from bootbridge.bootstrap.machine import address, certificates, network
from bootbridge.bootstrap.plan import record as plan_record
from bootbridge.bootstrap.plan.plan import PATHS, Flavour, IPAddress, Plan
from bootbridge.bootstrap.render import apiserver_manifest, egress_selector
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError

DIAL_SECONDS_MAX = 2.0
LAY_ANEW = "run bootbridge up again; on OpenShift: systemctl restart bootkube"
SERVER_LOGS = "look at the server's log: crictl logs, or bootbridge gather"


@dataclass(frozen=True)
class Node:
    """A node, the plan of its tunnel, and the time."""

    host: Host
    plan: Plan
    now: datetime

    def data(self, path: str) -> bytes:
        content = self.host.read(path)
        if content is None:
            raise OperatorError("is not there", subject=path, hint=LAY_ANEW)
        return content


def of_node(root: Path, now: datetime) -> list[CheckResult]:
    """Check the node whose files lie below `root`; its ports and addresses are this machine's."""
    host = Host(root)
    for paths in PATHS.values():
        record = host.read(paths.plan_record)
        if record is not None:
            plan = plan_record.load(record, paths.plan_record)
            found = passed(f"{plan.flavour} on {plan.platform}, {plan.protocol}", "plan-record")
            return [found, *run(CHECKS, Node(host, plan, now))]
    places = " or ".join(paths.plan_record for paths in PATHS.values())
    fix = "install the tunnel first: bootbridge up, or boot from an injected ignition file"
    return [failed(f"the tunnel is not installed on this node: {places} not found", fix, "plan-record")]


# --- the server


def _static_pod(node: Node) -> CheckResult:
    path = node.plan.paths.server_pod
    data = node.data(path)
    pod = mapping(data, path)
    left = [match.decode() for match in PLACEHOLDER.findall(data)]
    faults = [f"{name} was not filled in" for name in dict.fromkeys(left)]
    if at(pod, "metadata", "name") != node.plan.server_pod_name:
        faults.append(f"it is named {at(pod, 'metadata', 'name')}, not {node.plan.server_pod_name}")
    return judged(faults, path, LAY_ANEW)


def _socket(node: Node) -> CheckResult:
    path = node.plan.paths.socket
    if not node.host.exists(path):
        return failed(f"{path} is not there: the server does not run", SERVER_LOGS)
    if not node.host.path(path).is_socket():
        return failed(f"{path} is no socket", f"remove it; {SERVER_LOGS}")
    mode = node.host.mode(path)
    if mode & stat.S_IWOTH:
        return failed(
            f"{path} is {mode:04o}: every user of this node may call into the pod network", "chmod o-w it"
        )
    if not node.host.socket_accepts(path):
        return failed(f"nobody answers on {path}", SERVER_LOGS)
    return passed(f"{path}, mode {mode:04o}, answers")


def _agent_port(node: Node) -> CheckResult:
    """Dialled as an agent would, on every address that the certificate names."""
    port, addresses = node.plan.ports.agent, _addresses_in_certificate(node)
    if not addresses:
        return not_run("the server's certificate names no address")
    silent = [f"{each}: {reason}" for each in addresses if (reason := _dial(str(each), port))]
    shown = ", ".join(map(str, addresses))
    return judged(silent, f"TCP {port} answers on {shown}", SERVER_LOGS)


def _dial(host: str, port: int) -> str:
    """Why nobody answers; empty if somebody does."""
    try:
        socket.create_connection((host, port), timeout=DIAL_SECONDS_MAX).close()
    except OSError as error:
        return f"TCP {port} does not answer: {error.strerror or error}"
    return ""


def _health(page: str) -> Callable[[Node], CheckResult]:
    def check(node: Node) -> CheckResult:
        port = node.plan.ports.server_health
        status, body = node.host.http_get(port, page)
        answer = body[:100].decode(errors="replace").strip()
        shown = f"http://localhost:{port}{page} says {status or 'nothing'}: {answer}"
        return passed(shown) if status == 200 else failed(shown, _HEALTH_FIXES[page])

    return check


_HEALTH_FIXES = {
    "/healthz": SERVER_LOGS,
    "/readyz": "no agent is connected: look at the agents' pods and at the firewall (bootbridge doctor)",
}


# --- the certificates


def _certificates(node: Node) -> CheckResult:
    plan = node.plan
    bundle = certificates.load(node.host.root, plan)
    try:
        networks = plan.networks
        wanted = address.choose(plan.node_ips, networks.machine, network.observe(), networks.families)
    except OperatorError as error:
        return failed(f"this node's addresses are not clear: {error.args[0]}", error.hint)
    reason = certificates.renewal_reason(bundle, plan, wanted, node.now)
    if reason.startswith("certificates expire soon"):
        return warned(reason, LAY_ANEW)
    shown = ", ".join(map(str, wanted))
    return judged([reason] if reason else [], f"chain, keys and validity fit; for {shown}", LAY_ANEW)


def _certificate_modes(node: Node) -> CheckResult:
    paths, host = node.plan.paths, node.host
    open_keys = [
        f"{path} is {host.mode(path):04o}"
        for path in (paths.server_key, paths.agent_key)
        if host.exists(path) and host.mode(path) & 0o077
    ]
    missing = [
        f"{path} is not there" for path in (paths.server_key, paths.agent_key) if not host.exists(path)
    ]
    return judged([*missing, *open_keys], "keys are their owner's alone", f"chmod 600 them, or: {LAY_ANEW}")


def _ca_key_gone(node: Node) -> CheckResult:
    """Whoever holds the authority's key can make agents of his own."""
    paths, host = node.plan.paths, node.host
    expected = {paths.server_key, paths.agent_key}
    files = [
        path for path in host.files_below(paths.state) if path not in expected and host.path(path).is_file()
    ]
    found = [path for path in files if PRIVATE_KEY.search(host.read(path) or b"")]
    faults = [f"{path} holds a private key" for path in found]
    return judged(faults, f"no other key below {paths.state}", f"remove it, then: {LAY_ANEW}")


def _addresses_in_certificate(node: Node) -> Sequence[IPAddress]:
    path = node.plan.paths.server_cert
    try:
        found = certificates.addresses_of(x509.load_pem_x509_certificate(node.data(path)))
    except ValueError as error:
        raise OperatorError("is no certificate", subject=path, hint=LAY_ANEW) from error
    return found


# --- the kube-apiserver


def _egress(node: Node) -> CheckResult:
    path = node.plan.paths.egress_config
    faults = egress_faults(mapping(node.data(path), path), node.plan)
    return judged(faults, f"{path}: cluster traffic goes to the socket", LAY_ANEW)


def _apiserver(node: Node) -> CheckResult:
    """OpenShift has it in a configuration file, kubeadm on the command line."""
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
    return judged([] if is_set else [f"{path} does not set {wanted}"], f"{path} sets {wanted}", LAY_ANEW)


CHECKS: dict[str, Callable[[Node], CheckResult]] = {
    "certificates": _certificates,
    "key-modes": _certificate_modes,
    "ca-key-gone": _ca_key_gone,
    "egress-config": _egress,
    "server-pod": _static_pod,
    "socket": _socket,
    "agent-port": _agent_port,
    "server-healthy": _health("/healthz"),
    "server-ready": _health("/readyz"),
    "kube-apiserver": _apiserver,
}
