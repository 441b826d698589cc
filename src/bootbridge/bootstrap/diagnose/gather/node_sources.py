"""What this node has to tell: records, assets, certificates, logs, network, and the server's own pages."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bootbridge.bootstrap.diagnose import doctor
from bootbridge.bootstrap.diagnose.doctor import Examination, Way
from bootbridge.bootstrap.diagnose.gather.bundle import FILE_BYTES_MAX, Bundle
from bootbridge.bootstrap.diagnose.gather.certificate_facts import facts
from bootbridge.bootstrap.install.context import Site
from bootbridge.bootstrap.plan.plan import Flavour
from bootbridge.common.redaction import is_secret_file

RECORDS = "/var/log/openshift"
POD_LOGS = "/var/log/pods"
COMMAND_SECONDS_MAX = 15.0
LOG_LINES = "5000"
PAGES = ("healthz", "readyz", "status", "metrics")
UNITS = ("bootkube", "release-image", "kubelet", "crio", "containerd", "bootbridge-cleanup")
COMMANDS = {
    "ip-address": ("ip", "address"),
    "ip-route": ("ip", "route"),
    "ip-route-6": ("ip", "-6", "route"),
    "listeners": ("ss", "-lntup"),
    "containers": ("crictl", "ps", "-a"),
}

Collector = Callable[[Bundle], None]


def collectors(way: Way, examined: Callable[[Examination], None]) -> dict[str, Collector]:
    """By name, in the order in which they are asked: what is lost first comes first."""
    site = way.site
    return {
        "server's pages": partial(_pages, site),
        "stage records": partial(_records, site),
        "receipt": partial(_receipt, site),
        "assets": partial(_assets, site),
        "certificates": partial(_certificates, site),
        "static pods' logs": partial(_pod_logs, site),
        "journals": _journals,
        "network": _network,
        "doctor": partial(_doctor, way, examined),
    }


def _pages(site: Site, bundle: Bundle) -> None:
    for page in PAGES:
        for kind, port in (
            ("health", site.plan.ports.server_health),
            ("admin", site.plan.ports.server_admin),
        ):
            status, body = site.host.ask(port, f"/{page}")
            if status or kind == "health":
                bundle.add(f"node/server/{kind}-{page}.txt", f"HTTP {status}\n".encode() + body)


def records(site: Site) -> dict[str, bytes]:
    folder = site.host.path(RECORDS)
    return {path.stem: read_end(path) for path in sorted(folder.glob("*.json"))} if folder.is_dir() else {}


def _records(site: Site, bundle: Bundle) -> None:
    for service, data in records(site).items():
        bundle.add(f"node/services/{service}.json", data)


def _receipt(site: Site, bundle: Bundle) -> None:
    data = site.host.read(site.plan.receipt)
    if data is not None:
        bundle.add("node/receipt.json", data)


def _assets(site: Site, bundle: Bundle) -> None:
    """What was rendered, with the names it has on the node; keys stay there."""
    plan, paths = site.plan, site.plan.paths
    wanted = [*site.host.files_below(paths.state), paths.egress_config, paths.server_pod]
    if plan.flavour is Flavour.OPENSHIFT:
        wanted += [plan.hook_script, plan.cleanup_unit, plan.apiserver_config]
        wanted += [paths.namespace_manifest, paths.secret_manifest, paths.daemonset_manifest]
    else:
        wanted.append(paths.apiserver_pod)
    for path in dict.fromkeys(wanted):
        if site.host.path(path).is_file() and not is_secret_file(path):
            bundle.add(f"node/assets{path}", read_end(site.host.path(path)))


def _certificates(site: Site, bundle: Bundle) -> None:
    paths = site.plan.paths
    held = {path: site.host.read(path) for path in (paths.ca_cert, paths.server_cert, paths.agent_cert)}
    document = {path: facts(data) if data else "not there" for path, data in held.items()}
    modes = {
        path: f"{site.host.mode(path):04o}" if site.host.exists(path) else "not there"
        for path in (paths.server_key, paths.agent_key, paths.socket)
    }
    text = json.dumps({"certificates": document, "modes": modes}, indent=2)
    bundle.add("node/certificates.json", f"{text}\n".encode())


def _pod_logs(site: Site, bundle: Bundle) -> None:
    """Of the server and the kube-apiserver, as the container runtime wrote them, the ended ones, too."""
    folder = site.host.path(POD_LOGS)
    for name in (site.plan.server_pod_name, "kube-apiserver", "bootstrap-kube-apiserver"):
        for path in sorted(folder.glob(f"*_{name}*/*/*.log"))[-6:] if folder.is_dir() else ():
            pod, container = path.parts[-3], path.parts[-2]
            bundle.add(f"node/logs/{pod}/{container}-{path.name}", read_end(path))


def _journals(bundle: Bundle) -> None:
    if not shutil.which("journalctl"):
        return
    for unit in UNITS:
        argv = ["journalctl", "--no-pager", "--output=short-iso", f"--unit={unit}", f"--lines={LOG_LINES}"]
        data = run(argv)
        if data.strip() and b"-- No entries --" not in data:
            bundle.add(f"node/journals/{unit}.log", data)


def _network(bundle: Bundle) -> None:
    for name, argv in COMMANDS.items():
        if shutil.which(argv[0]):
            bundle.add(f"node/network/{name}.txt", run(argv))


def _doctor(way: Way, examined: Callable[[Examination], None], bundle: Bundle) -> None:
    examination = doctor.examine(way)
    examined(examination)
    text = json.dumps(examination.document(), indent=2, ensure_ascii=False)
    bundle.add("doctor.json", f"{text}\n".encode())


# --- reading


def run(argv: list[str] | tuple[str, ...]) -> bytes:
    """What a command says, its complaints included; never longer than its time."""
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
        return (error.stdout or b"") + f"\n[no end within {COMMAND_SECONDS_MAX:g} s]\n".encode()
    except OSError as error:
        return f"[{argv[0]}: {error.strerror}]\n".encode()
    return done.stdout


def read_end(path: Path) -> bytes:
    """A file, or its end from a line's beginning on; more than is kept, for some of it is taken out."""
    limit = 2 * FILE_BYTES_MAX
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - limit))
        data = file.read(limit)
    return data.partition(b"\n")[2] if size > limit else data
