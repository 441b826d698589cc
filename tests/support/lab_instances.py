"""A lab of blank instances for tests, and the cluster that they form."""

from __future__ import annotations

import base64
import json
import os
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

from bootbridge.common.files import Asset
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import Role
from bootbridge.join_api.kubelet_certificate import KubeletCa, KubeletCsr
from bootbridge.join_api.messages import JOIN_PORT
from bootbridge.join_service import manifests
from bootbridge.join_service.bootstrap_tokens import GROUP, node_group
from bootbridge.join_service.measurement_secret import SECRET_NAME, MeasurementSecret
from bootbridge.join_service.policy_watch import POLICY_NAME
from bootbridge.lab import components, init, instances, tpm
from bootbridge.lab.images import Images
from bootbridge.lab.instances import InstancesBuilder
from bootbridge.lab.lab import ENVIRONMENT, Lab
from bootbridge.lab.layout import LabNode, Layout
from bootbridge.node import node_paths
from bootbridge.node.join import last_error
from bootbridge.node.kubelet_csr import new_kubelet_csr
from bootbridge.node.lock import bootstrap_record, node_state
from tests.support.lab import CALL_SECONDS, IMAGES, SHORT_PAUSES, WAIT_SECONDS, keep_logs, until
from tests.support.process_program import ROOT

Json = dict[str, Any]
Done = subprocess.CompletedProcess[str]
INIT_SECONDS = 600.0
KUBEADM = f"{instances.PROGRAMS}/kubeadm"
RESUME_FILE = "/run/resume-kubeadm"
# Stops printing kubeadm's output after preflight, and does not exit, until the file exists.
PAUSED_KUBEADM = """#!/bin/sh
case "$1" in join) ;; *) exec {real} "$@" ;; esac
if [ -e {resume} ]; then exec {real} "$@"; fi
{{ {real} "$@" 2>&1; echo $? > {resume}.status; }} | while IFS= read -r line; do
    printf '%s\n' "$line"
    case "$line" in
        "[preflight]"*) ;;
        "["*) until [ -e {resume} ]; do sleep 0.02; done ;;
    esac
done
exit "$(cat {resume}.status)"
"""
FILES_OF_NODES = (node_paths.SERVING, node_paths.KUBELET_KUBECONFIG)


def missing() -> str:
    """Returns what a lab of blank instances lacks here, in addition to what every lab needs."""
    try:
        components.find(bootstrapper=True)
    except OperatorError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Instances:
    lab: Lab
    components: components.Components

    @classmethod
    @contextmanager
    def up(cls, directory: Path, layout: Layout) -> Iterator[Instances]:
        """Brings them up in `directory`, and removes them at the end."""
        found = components.find(bootstrapper=True)
        lab = Lab(directory, layout)
        try:
            InstancesBuilder(lab, found, Images(IMAGES, found, None), Progress(sys.stderr)).bring_up()
            yield cls(lab, found)
        finally:
            keep_logs(lab)
            left = lab.down()
        assert left == [], "`lab down` leaves nothing"
        assert not _running_in(directory), "no TPM is left either"

    def node(self, name: str) -> LabNode:
        return self.lab.layout.node(name)

    # --- the operator

    def init(self, *words: str, seconds: float = INIT_SECONDS) -> Done:
        """Runs `bootbridge node init`; the caller checks the result."""
        argv = instances.init_command(self.lab, *words)
        return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)

    @contextmanager
    def init_running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        argv = instances.init_command(self.lab, *words)
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    # --- the cluster

    def kubectl(self, *words: str, input: bytes | None = None) -> str:
        done = subprocess.run(
            self.lab.kubectl(self.components, *words),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=CALL_SECONDS,
        )
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr.decode().strip()}"
        return done.stdout.decode()

    def get(self, *words: str) -> Json:
        document: Json = json.loads(self.kubectl("get", *words, "-o", "json"))
        return document

    def nodes(self) -> dict[str, bool]:
        """Returns name → whether the node is ready."""
        return {node["metadata"]["name"]: _ready(node) for node in self.get("nodes")["items"]}

    def ready(self, *names: str) -> bool:
        found = self.nodes()
        return all(found.get(name) for name in names)

    def tokens(self) -> set[str]:
        """Returns the names of the existing bootstrap tokens."""
        chosen = "type=bootstrap.kubernetes.io/token"
        found = self.get("secrets", "--namespace=kube-system", f"--field-selector={chosen}")
        return {secret["metadata"]["name"] for secret in found["items"]}

    @contextmanager
    def token_for(self, node: str) -> Iterator[str]:
        """Creates a bootstrap token for one node, as in a ticket, and deletes it after the block."""
        groups = f"--groups={GROUP},{node_group(node)}"
        token = self.run("node1", "kubeadm", "token", "create", groups).stdout.strip()
        try:
            yield token
        finally:
            self.run("node1", "kubeadm", "token", "delete", token.partition(".")[0])

    def secrets(self, *nodes: str) -> dict[str, str]:
        """Returns a part of every secret, by its name, to search for in logs and files."""
        files = instances.operator_files(self.lab)
        found = {"the init secret": files.init_secret.read_text().strip()}
        master = json.loads(files.master_secret.read_text())
        found |= {f"the master secret's {name}": str(value) for name, value in master.items()}
        measurement = MeasurementSecret.load(
            self.get("secret", SECRET_NAME, "--namespace=kube-system")
        ).secret
        found |= {"the measurement secret, hex": measurement.hex()}
        found |= {"the measurement secret, base64": base64.b64encode(measurement).decode().rstrip("=")}
        for name in self.tokens():
            data = self.get("secret", name, "--namespace=kube-system")["data"]
            found[name] = base64.b64decode(data["token-secret"]).decode()
        for node in nodes:
            keys = [
                self.lab.file(node, node_paths.SERVING),
                *self.lab.file(node, node_paths.PKI).rglob("*.key"),
            ]
            found |= {f"{node}: {path.name}": _private_part(path.read_text()) for path in keys}
        return found

    def join_service_log(self) -> str:
        """Returns the logs of all join services, with their audit lines."""
        label = f"app={manifests.NAME}"
        return self.kubectl("logs", f"--namespace={manifests.NAMESPACE}", f"-l={label}", "--tail=-1")

    def audited(self, node: str) -> list[Json]:
        """Returns a node's audit entries, oldest first; kubectl does not merge the logs by time."""
        lines = [line for line in self.join_service_log().splitlines() if line.startswith("{")]
        found = [entry for entry in map(json.loads, lines) if entry.get("node") == node]
        return sorted(found, key=lambda entry: str(entry["time"]))

    def until_audited(self, node: str, reason: str) -> None:
        """Waits until a node's last audit entry has this reason; lines reach the log with a delay."""

        def is_last() -> bool:
            found = self.audited(node)
            return bool(found) and reason in found[-1].get("reason", "")

        self.until(is_last, f"the last audit entry of {node} has the reason: {reason}")

    def policy(self) -> Json:
        found = self.get("configmap", POLICY_NAME, f"--namespace={manifests.NAMESPACE}")
        document: Json = json.loads(found["data"]["policy.json"])
        return document

    def change_policy(self, document: Json) -> None:
        patch = json.dumps({"data": {"policy.json": json.dumps(document)}})
        self.kubectl(
            "patch", "configmap", POLICY_NAME, f"--namespace={manifests.NAMESPACE}", f"--patch={patch}"
        )

    # --- an instance

    def log(self, node: str, program: str = instances.BOOTSTRAPPER) -> str:
        try:
            return self.lab.log(node, program).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def clear_log(self, node: str) -> None:
        self.lab.log(node, instances.BOOTSTRAPPER).unlink(missing_ok=True)

    def run(self, node: str, *argv: str, seconds: float = WAIT_SECONDS) -> Done:
        done = subprocess.run(
            self.lab.namespaces(node).command(argv),
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout}{done.stderr}"
        return done

    def status(self, node: str) -> Json:
        """Returns the output of `bootbridge node status`."""
        document: Json = json.loads(self.bootbridge(node, "node", "status", "--json").stdout)
        return document

    def bootbridge(self, node: str, *words: str) -> Done:
        return self.run(node, sys.executable, "-m", "bootbridge.cli.main", *words)

    def arguments(self, node: str) -> set[str]:
        """Returns the command lines of all processes on an instance."""
        found = set()
        for process in self.lab.file(node, "/proc").glob("[0-9]*"):
            with suppress(OSError):  # the process has ended
                found.add((process / "cmdline").read_text(errors="replace").replace("\0", " ").strip())
        return found

    def open_files_with(self, secrets: Mapping[str, str], node: str) -> list[str]:
        """Returns the files readable by other users than root that contain a secret."""
        own = self.lab.directory / "nodes" / node
        disk = [own / init.directory_name(path) / "upper" for path in init.OVERLAID]
        disk += [own / init.directory_name(path) for path in init.BOUND if path != "/var/lib/containerd"]
        found = []
        for path in chain.from_iterable(map(_open_to_others, [*disk, self.lab.file(node, "/run")])):
            with suppress(OSError):  # the file was removed
                text = path.read_bytes()
                found += [f"{path}: {what}" for what, secret in secrets.items() if secret.encode() in text]
        return found

    def start_bootstrapper(self, node: str) -> None:
        instances.start_bootstrapper(self.lab, self.node(node))

    def kill_bootstrapper(self, node: str) -> None:
        """Sends SIGKILL to the bootstrapper."""
        for process in self.lab.file(node, "/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:  # the process has ended
                continue
            if words[2:5] == [b"bootbridge.cli.main", b"node", b"run"]:
                self.run(node, "kill", "-9", process.name)

    @contextmanager
    def kubeadm_paused_after_preflight(self, node: str) -> Iterator[Callable[[], None]]:
        """Pauses a join after its preflight until the yielded function is called or the block ends."""
        program = self.lab.file(node, KUBEADM)
        real, resume = os.readlink(program), self.lab.file(node, RESUME_FILE)
        self.lab.write(
            node,
            {
                KUBEADM: Asset(
                    PAUSED_KUBEADM.format(real=shlex.quote(real), resume=RESUME_FILE).encode(), 0o755
                )
            },
        )
        try:
            yield resume.touch
        finally:
            resume.touch()
            program.unlink()
            program.symlink_to(real)

    def power_cycle(self, node: str) -> None:
        """Restarts an instance without starting the bootstrapper."""
        instances.power_cycle(self.lab, self.node(node), self.components)

    def make_blank(self, node: str) -> None:
        """Restarts an instance, deletes its cluster state, and deletes its node from the cluster."""
        self.power_cycle(node)
        self.run(node, "kubeadm", "reset", "--force")
        self.run(node, "rm", "-rf", str(node_state.STATE.parent))
        # No kubelet runs on it that could register it again.
        self.kubectl("delete", "node", node, "--ignore-not-found")
        self.clear_log(node)

    def reboot(self, node: str) -> None:
        instances.reboot(self.lab, self.node(node), self.components)

    def serving_certificate(self, node: str) -> bytes:
        """Returns certificate and key in PEM."""
        return self.lab.file(node, node_paths.SERVING).read_bytes()

    def make_serving_certificate_due(self, node: str) -> bytes:
        """Installs one that the cluster's CA signed 20 hours ago for 23 hours; returns it with its key."""
        authority = KubeletCa(
            *(
                self.lab.file("node1", f"{node_paths.PKI}/{name}").read_bytes()
                for name in ("ca.crt", "ca.key")
            )
        )
        fresh = new_kubelet_csr(node)
        certificate = authority.sign(
            KubeletCsr(fresh.csr),
            node,
            self.node(node).addresses,
            now=time.time() - timedelta(hours=20).total_seconds(),
            validity=timedelta(hours=23),
        )
        pair = Asset(certificate + fresh.key, 0o600)
        self.lab.write(node, {node_paths.SERVING: pair})
        return pair.data

    def measure(self, node: str, register: int, data: bytes) -> None:
        tpm.measure(self.lab, self.node(node), register, data)

    def attack(
        self, attack: str, node: str, *, name: str = "", role: Role = Role.WORKER, token: str = ""
    ) -> Json:
        """Runs lab_attacker on an instance and returns its result."""
        device = token or f"unix:{self.lab.file(node, tpm.SOCKET)}"
        service = str(self.lab.layout.first.address)
        words = [attack, device, service, str(JOIN_PORT), name or node, str(role)]
        done = subprocess.run(
            self.lab.namespaces(node).command(
                [sys.executable, "-m", "tests.support.lab_attacker", *words], network_only=True
            ),
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        answer: Json = json.loads(done.stdout)
        return answer

    def is_blank(self, node: str) -> bool:
        """Returns whether an instance has no files of the cluster and no Node object."""
        files = [
            path
            for folder in (node_paths.PKI, str(node_state.STATE.parent), str(bootstrap_record.DIRECTORY))
            for path in self.lab.file(node, folder).rglob("*")
            if path.is_file() and path.name not in (bootstrap_record.PROCESS_LOCK, last_error.FILE)
        ]
        files += [self.lab.file(node, path) for path in FILES_OF_NODES if self.lab.file(node, path).exists()]
        return files == [] and node not in self.nodes()

    def until(self, condition: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
        until(condition, what, seconds)

    def until_logged(self, node: str, text: str, seconds: float = WAIT_SECONDS) -> None:
        """Waits until the bootstrapper has logged a text; polls fast, because some states are short."""
        until(lambda: text in self.log(node), f"{node} logs {text!r}", seconds, SHORT_PAUSES)


def _private_part(pem: str) -> str:
    """Returns a line of a key that contains no public data: the first of an EC key, the middle of an RSA key.

    A certificate in the same file precedes the key.
    """
    lines = pem[pem.rindex("-----BEGIN") :].splitlines()
    return lines[1] if len(lines) < 10 else lines[len(lines) // 2]


def _open_to_others(folder: Path) -> Iterator[Path]:
    """Yields files that other users can reach and read, without those of other mounts."""
    here = folder.stat().st_dev
    if not _is_searchable_by_others(folder, here):
        return
    for parent, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if _is_searchable_by_others(Path(parent, each), here)]
        for path in (Path(parent, each) for each in files):
            if stat.S_ISREG((status := _status(path)).st_mode) and status.st_mode & 0o044:
                yield path


def _is_searchable_by_others(folder: Path, device: int) -> bool:
    status = _status(folder)
    return status.st_dev == device and bool(status.st_mode & 0o011)


def _status(path: Path) -> os.stat_result:
    try:
        return path.lstat()
    except OSError:  # the file was removed
        return os.stat_result([0] * 10)


def _ready(node: Json) -> bool:
    conditions: Sequence[Json] = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _running_in(directory: Path) -> list[str]:
    """Returns the command lines of processes with mounts below a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(directory) in (process / "mountinfo").read_text():
                found.append((process / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found
