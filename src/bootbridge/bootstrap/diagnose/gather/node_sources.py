"""Sources on the node: pages of the server, records, files, logs, network, and the doctor."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bootbridge.bootstrap.diagnose import doctor
from bootbridge.bootstrap.diagnose.doctor import Diagnosis, DiagnosisContext
from bootbridge.bootstrap.diagnose.gather.bundle import FILE_BYTES_MAX, LogBundle
from bootbridge.bootstrap.diagnose.gather.certificate_facts import facts
from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.bootstrap.plan.plan import Flavour
from bootbridge.common.redaction import is_secret_file

RECORDS = "/var/log/openshift"
POD_LOGS = "/var/log/pods"
COMMAND_SECONDS_MAX = 15.0
LOG_LINES = "5000"
# The Go server has no status, and older ones have their metrics on the admin port.
HEALTH_PAGES = ("healthz", "readyz", "metrics")
ADMIN_PAGES = ("status", "metrics")
UNITS = (
    *("bootkube", "release-image", "kubelet", "crio", "containerd"),
    *("bootbridge-cleanup", "bootbridge-cleanup-retry"),
)
COMMANDS = {
    "ip-address": ("ip", "address"),
    "ip-route": ("ip", "route"),
    "ip-route-6": ("ip", "-6", "route"),
    "listeners": ("ss", "-lntup"),
    "containers": ("crictl", "ps", "-a"),
}

Collector = Callable[[LogBundle], None]


def collectors(context: DiagnosisContext, diagnosed: Callable[[Diagnosis], None]) -> dict[str, Collector]:
    """Returns the sources by name; those that change or disappear first come first."""
    install = context.install
    return {
        "server's pages": partial(_pages, install),
        "stage records": partial(_records, install),
        "receipt": partial(_receipt, install),
        "assets": partial(_assets, install),
        "certificates": partial(_certificates, install),
        "static pods' logs": partial(_pod_logs, install),
        "journals": _journals,
        "network": _network,
        "doctor": partial(_doctor, context, diagnosed),
    }


def _pages(context: InstallContext, bundle: LogBundle) -> None:
    ports = context.plan.ports
    for kind, port, pages in (
        ("health", ports.server_health, HEALTH_PAGES),
        ("admin", ports.server_admin, ADMIN_PAGES),
    ):
        for page in pages:
            status, body = context.host.http_get(port, f"/{page}")
            if status or kind == "health":
                bundle.add(f"node/server/{kind}-{page}.txt", f"HTTP {status}\n".encode() + body)


def records(context: InstallContext) -> dict[str, bytes]:
    folder = context.host.path(RECORDS)
    return {path.stem: read_end(path) for path in sorted(folder.glob("*.json"))} if folder.is_dir() else {}


def _records(context: InstallContext, bundle: LogBundle) -> None:
    for service, data in records(context).items():
        bundle.add(f"node/services/{service}.json", data)


def _receipt(context: InstallContext, bundle: LogBundle) -> None:
    data = context.host.read(context.plan.paths.receipt)
    if data is not None:
        bundle.add("node/receipt.json", data)


def _assets(context: InstallContext, bundle: LogBundle) -> None:
    """Adds the rendered files under their paths on the node, without keys."""
    plan, paths = context.plan, context.plan.paths
    wanted = [*context.host.files_below(paths.state), paths.egress_config, paths.server_pod]
    if plan.flavour is Flavour.OPENSHIFT:
        wanted += [paths.hook_script, paths.cleanup_unit, paths.cleanup_retry_unit, paths.apiserver_config]
        wanted += [paths.namespace_manifest, paths.secret_manifest, paths.daemonset_manifest]
        wanted += [paths.role_manifest, paths.role_binding_manifest]
    else:
        wanted.append(paths.apiserver_pod)
    for path in dict.fromkeys(wanted):
        if context.host.path(path).is_file() and not is_secret_file(path):
            bundle.add(f"node/assets{path}", read_end(context.host.path(path)))


def _certificates(context: InstallContext, bundle: LogBundle) -> None:
    paths = context.plan.paths
    held = {path: context.host.read(path) for path in (paths.ca_cert, paths.server_cert, paths.agent_cert)}
    document = {path: facts(data) if data else "file not found" for path, data in held.items()}
    modes = {
        path: f"{context.host.mode(path):04o}" if context.host.exists(path) else "file not found"
        for path in (paths.server_key, paths.agent_key, paths.socket)
    }
    text = json.dumps({"certificates": document, "modes": modes}, indent=2)
    bundle.add("node/certificates.json", f"{text}\n".encode())


def _pod_logs(context: InstallContext, bundle: LogBundle) -> None:
    """Adds logs of server and kube-apiserver from the container runtime, also of exited containers."""
    folder = context.host.path(POD_LOGS)
    for name in (context.plan.server_pod_name, "kube-apiserver", "bootstrap-kube-apiserver"):
        for path in sorted(folder.glob(f"*_{name}*/*/*.log"))[-6:] if folder.is_dir() else ():
            pod, container = path.parts[-3], path.parts[-2]
            bundle.add(f"node/logs/{pod}/{container}-{path.name}", read_end(path))


def _journals(bundle: LogBundle) -> None:
    if not shutil.which("journalctl"):
        return
    for unit in UNITS:
        argv = ["journalctl", "--no-pager", "--output=short-iso", f"--unit={unit}", f"--lines={LOG_LINES}"]
        data = run(argv)
        if data.strip() and b"-- No entries --" not in data:
            bundle.add(f"node/journals/{unit}.log", data)


def _network(bundle: LogBundle) -> None:
    for name, argv in COMMANDS.items():
        if shutil.which(argv[0]):
            bundle.add(f"node/network/{name}.txt", run(argv))


def _doctor(context: DiagnosisContext, diagnosed: Callable[[Diagnosis], None], bundle: LogBundle) -> None:
    diagnosis = doctor.diagnose(context)
    diagnosed(diagnosis)
    text = json.dumps(diagnosis.document(), indent=2, ensure_ascii=False)
    bundle.add("doctor.json", f"{text}\n".encode())


# --- reading


def run(argv: list[str] | tuple[str, ...]) -> bytes:
    """Returns stdout and stderr of a command, limited to COMMAND_SECONDS_MAX."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"") + f"\n[timed out after {COMMAND_SECONDS_MAX:g}s]\n".encode()
    except OSError as error:
        return f"[{argv[0]}: {error.strerror}]\n".encode()
    return done.stdout


def read_end(path: Path) -> bytes:
    """Returns a file, or whole lines of its end; twice the limit, because redaction shortens it."""
    limit = 2 * FILE_BYTES_MAX
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - limit))
        data = file.read(limit)
    return data.partition(b"\n")[2] if size > limit else data
