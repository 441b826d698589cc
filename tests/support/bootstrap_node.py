"""Simulates a kubeadm node in a folder: files, a fake kubelet, and a cluster behind its kube-apiserver."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Protocol

from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.plan import Flavour, Plan, ProxyImage
from bootbridge.bootstrap.plan.ports import Ports
from tests.support import bootstrap_driver
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import FakeKubelet, Json
from tests.support.process_program import ROOT, free_port, until

NODES = ("node0", "node1")
PATIENCE_SECONDS = 60.0
MANIFEST = """\
# Written by kubeadm, then edited: this comment must survive.
apiVersion: v1
kind: Pod
metadata:
  labels:
    component: kube-apiserver
    tier: control-plane
  name: kube-apiserver
  namespace: kube-system
spec:
  containers:
  - command:
    - kube-apiserver
    - --secure-port={port}
    - --backend={backend}
    image: registry.k8s.io/kube-apiserver:v1.33.0
    name: kube-apiserver
    volumeMounts:
    - mountPath: /etc/kubernetes/pki
      name: k8s-certs
      readOnly: true
  hostNetwork: true
  volumes:
  - hostPath:
      path: /etc/kubernetes/pki
      type: DirectoryOrCreate
    name: k8s-certs
status: {{}}
"""


class ClusterApi(Protocol):
    """The cluster behind the node's kube-apiserver, fake or real."""

    port: int

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]: ...
    def names(self) -> list[str]: ...
    def kubeconfig(self, port: int) -> Json: ...
    def close(self) -> None: ...


class BootstrapNode:
    """Holds everything that `up` and `down` change, and scans it."""

    def __init__(self, folder: Path, api: ClusterApi | None = None) -> None:
        # A short path: the kernel limits the socket's path to 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="bb", dir="/tmp"))
        self.folder = folder
        ports = Ports(*(free_port() for _ in range(5)))
        self.plan = Plan(
            flavour=Flavour.KUBEADM,
            image=ProxyImage("bootbridge", "bootbridge:test"),
            ports=ports,
            key_kind="ecdsa-p256",
            # The pods of the test are processes on loopback addresses.
            allow_destinations=("127.0.0.0/8",),
        )
        self.plan_file = folder / "plan.json"
        self.plan_file.write_bytes(record.dump(self.plan))
        self.api: Any = api or FakeCluster(folder, NODES)
        self.api_port = free_port()
        self.manifest = self.root / "etc/kubernetes/manifests/kube-apiserver.yaml"
        self.manifest.parent.mkdir(parents=True)
        self.kubeconfig = self.root / "etc/kubernetes/admin.conf"
        self.output = self.stdout = ""
        self.kubelet = FakeKubelet(self.root, folder / "kubelet", self.api.call, NODES)

    def kubeadm_init(self) -> None:
        """Starts the kube-apiserver and writes the kubeconfig."""
        self.manifest.write_text(MANIFEST.format(port=self.api_port, backend=self.api.port))
        self.manifest.chmod(0o600)
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(self.api.kubeconfig(self.api_port)))
        until(lambda: _is_listening(self.api_port), "kube-apiserver runs")

    def close(self) -> None:
        self.kubelet.close()
        self.api.close()
        shutil.rmtree(self.root)

    def path(self, node_path: str) -> Path:
        return self.root / node_path.lstrip("/")

    # --- commands

    def run(self, verb: str, *flags: str, env: Mapping[str, str] | None = None) -> int:
        """Runs a command, stores its output in `output`, and returns its exit code.

        With `env` it runs in a separate process, which may be killed.
        """
        argv = self._argv(verb, flags)
        if env is None:
            code, self.stdout, errors = _in_process(argv)
        else:
            done = subprocess.run(
                [sys.executable, "-m", bootstrap_driver.__name__, *argv],
                cwd=ROOT,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
            )
            code, self.stdout, errors = done.returncode, done.stdout, done.stderr
        self.output = self.stdout + errors
        return code

    def _argv(self, verb: str, flags: tuple[str, ...]) -> list[str]:
        own = ["--plan", str(self.plan_file)] if verb == "up" else []
        return [verb, "--root", str(self.root), *own, *flags]

    def up(self, *flags: str, env: Mapping[str, str] | None = None) -> None:
        code = self.run("up", *flags, env=env)
        assert code == 0, self.output + self.kubelet.log.read_text()[-2000:]

    def down(self, *flags: str) -> None:
        code = self.run("down", *flags)
        assert code == 0, self.output

    def receipt(self) -> dict[str, object]:
        document: dict[str, object] = json.loads(self.path(self.plan.paths.receipt).read_text())
        return document

    # --- scan

    def scan(self) -> dict[str, object]:
        """Returns files, sockets, ports, processes and API objects, but not the receipt, which is kept."""
        return {
            "files": dict(sorted(self._files())),
            "ports": [port for port in vars(self.plan.ports).values() if _is_listening(port)],
            "processes": sorted(self._processes()),
            "objects": self.api.names(),
        }

    def _files(self) -> Iterator[tuple[str, str]]:
        for path in self.root.rglob("*"):
            name = f"/{path.relative_to(self.root)}"
            if name.startswith("/var"):
                continue
            facts = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(facts.st_mode) else ""
            yield name, f"{stat.filemode(facts.st_mode)} {content}"

    def _processes(self) -> Iterator[str]:
        """Yields command lines without process IDs, which change when the kube-apiserver restarts."""
        for entry in os.listdir("/proc"):
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            line = b" ".join(words).decode(errors="replace")
            here = str(self.root) in line or str(self.folder) in line or f"={self.api_port}" in line
            if entry.isdigit() and int(entry) != os.getpid() and here:
                yield line


@contextmanager
def bootstrap_node(
    folder: Path, *, initialised: bool = True, api: ClusterApi | None = None
) -> Iterator[BootstrapNode]:
    node = BootstrapNode(folder, api)
    try:
        if initialised:
            node.kubeadm_init()
        yield node
    finally:
        node.close()


def _in_process(argv: list[str]) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = bootstrap_driver.main(*argv)
    return code, out.getvalue(), errors.getvalue()


def _is_listening(port: int) -> bool:
    lines = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return any(fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port for fields in lines)
