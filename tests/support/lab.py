"""One real bootstrap: a lab, what runs in its cluster, and bridges of all kinds."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bootbridge.bootstrap import manifests, plan_record
from bootbridge.bootstrap.node_values import node_values
from bootbridge.bootstrap.plan import KUBEADM_PATHS, Image, Plan
from bootbridge.bootstrap.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.kube.objects import FIELD_MANAGER
from bootbridge.lab import components, production, workloads
from bootbridge.lab.bring_up import Builder, konnectivity_programs
from bootbridge.lab.credentials import ADMIN_KUBECONFIG
from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE, Images
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import Layout
from tests.support.process_program import ROOT

IMAGES = ROOT / "build" / "lab-images"
CALL_SECONDS = 60.0
# Generous: two cores carry three kubelets and a control plane, and maybe more.
WAIT_SECONDS = 240.0
BRIDGE_SECONDS = 900.0
GUARDED = "guarded"

Json = dict[str, Any]
Done = subprocess.CompletedProcess[str]


def missing() -> str:
    """What keeps the tests marked `e2e` from running here, in words; empty when nothing does."""
    if os.geteuid() != 0:
        return "a lab makes namespaces and mounts: run it as root"
    try:
        components.find()
    except OperatorError as error:
        return str(error)
    return "" if konnectivity_programs() else "the Go originals are missing: make peers"


@dataclass(frozen=True)
class Pairing:
    """Whose server and whose agents, and what the kube-apiserver speaks with the server."""

    server: str
    agent: str
    protocol: str = "GRPC"

    def __str__(self) -> str:
        return f"{self.server} server, {self.agent} agents, {self.protocol}"

    @property
    def name(self) -> str:
        return f"{self.server} × {self.agent}"


OURS = Pairing("our", "our")
_IMAGES = {
    "our": Image("bootbridge", TUNNEL_IMAGE),
    "Go": Image("konnectivity", KONNECTIVITY_IMAGE),
}


@dataclass
class Cluster:
    """A lab that is up, with an API server to ask."""

    lab: Lab
    components: components.Components
    images: Images
    pairing: Pairing | None = None
    timings: dict[str, float] = field(default_factory=dict)

    # --- the lab

    @classmethod
    @contextmanager
    def up(cls, directory: Path) -> Iterator[Cluster]:
        """Bring a lab up in `directory`; whatever happens, nothing of it is left afterwards."""
        found = components.find()
        lab = Lab(directory, Layout())
        images = Images(IMAGES, found, konnectivity_programs())
        cluster = cls(lab, found, images)
        try:
            with cluster.timed("lab up"):
                Builder(
                    lab, found, images, Progress(sys.stderr), (TUNNEL_IMAGE, KONNECTIVITY_IMAGE)
                ).bring_up()
            yield cluster
        finally:
            with cluster.timed("lab down"):
                left = lab.down()
        assert left == [], "`lab down` leaves nothing"

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.timings[what] = time.monotonic() - started

    def start_production(self, node: str = "node1") -> None:
        """A kube-apiserver on a cluster node, beside the pods, without an egress selector."""
        with self.timed("production kube-apiserver"):
            production.start(self.lab, node, self.components, self.images, Progress(sys.stderr))

    # --- asking it

    def kubectl(
        self,
        *words: str,
        input: bytes | None = None,
        seconds: float = CALL_SECONDS,
        check: bool = True,
        node: str = "bootstrap",
    ) -> Done:
        """Run kubectl on a node, against the API server there; with `check` it has to succeed."""
        done = subprocess.run(
            self.lab.kubectl(self.components, *words, node=node),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=seconds,
        )
        text = subprocess.CompletedProcess(
            words, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        if check:
            assert text.returncode == 0, f"kubectl {' '.join(words)}: {text.stderr.strip()}"
        return text

    def raw(self, path: str, **more: Any) -> str:
        return self.kubectl("get", "--raw", path, **more).stdout

    def get(self, *words: str) -> Json:
        document: Json = json.loads(self.kubectl("get", *words, "-o", "json").stdout)
        return document

    def apply(self, *documents: Json) -> None:
        self.kubectl("apply", "-f", "-", input=workloads.as_text(list(documents)))

    def create(self, document: Json, *words: str, **more: Any) -> Done:
        """What the API server says to a new object."""
        text = workloads.as_text([document])
        return self.kubectl("create", "-f", "-", *words, input=text, check=False, **more)

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """kubectl as long as the block; in the node's network alone, so that it is kubectl that is ended."""
        kubeconfig = self.lab.file("bootstrap", ADMIN_KUBECONFIG)
        argv = ["env", f"KUBECONFIG={kubeconfig}", self.components["kubectl"], *words]
        process = subprocess.Popen(
            self.lab.space("bootstrap").command(argv, network_only=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def until(self, condition: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait for a condition; if it fails or is false, it is asked again until the deadline."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
                why = ""
            except (AssertionError, subprocess.TimeoutExpired) as error:
                why = f": {error}"
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}{why}"
            time.sleep(0.2)

    # --- what runs in it

    def start_workloads(self) -> None:
        """The extension server on every node, and all that makes the API server call it."""
        self.apply(workloads.namespace(GUARDED, workloads.GUARDED), *workloads.Workloads.create().all())
        self.rolled_out(workloads.NAMESPACE, workloads.SERVICE)

    def rolled_out(self, namespace: str, daemon_set: str) -> None:
        """Every node has a pod of the DaemonSet, of its newest kind, and ready."""
        what = f"{namespace}/{daemon_set} is ready on all nodes"
        self.until(lambda: self._is_rolled_out(namespace, daemon_set), what)

    def _is_rolled_out(self, namespace: str, daemon_set: str) -> bool:
        found = self.get("daemonset", daemon_set, f"--namespace={namespace}")
        counts = found["status"]
        nodes = len(self.lab.layout.cluster_nodes)
        newest = counts.get("observedGeneration") == found["metadata"]["generation"]
        ready = min(counts.get("numberAvailable", 0), counts.get("updatedNumberScheduled", 0))
        return bool(newest and ready == nodes)

    def extension_pods(self) -> dict[str, str]:
        """Node → the pod of the extension server there."""
        found = self.get("pods", f"--namespace={workloads.NAMESPACE}", "-l", f"app={workloads.SERVICE}")
        return {pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in found["items"]}

    def metric(self, name: str) -> dict[str, float]:
        """The samples of one of the API server's metrics: labels → value."""
        found = {}
        for line in self.raw("/metrics").splitlines():
            if line.startswith((f"{name}{{", f"{name} ")):
                labels, _, value = line.removeprefix(name).rpartition(" ")
                found[labels] = float(value)
        return found

    # --- the bridge

    def bootbridge(self, *words: str, seconds: float = BRIDGE_SECONDS) -> Done:
        """Run our own program on the bootstrap node; exit code and words are the caller's to judge."""
        argv = self.lab.bootbridge(*words)
        return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)

    def bridge(self, pairing: Pairing = OURS) -> None:
        """Bring the bridge into this shape, from whichever it has, and wait until it carries."""
        if self.pairing == pairing:
            return
        if self.pairing and self.pairing.protocol != pairing.protocol:
            self.end_agents()
            self.unbridge()
        with self.timed(f"bridge: {pairing}"):
            if self.pairing is None or self.pairing.server != pairing.server:
                self._up(pairing)
                agents = pairing.server
            else:
                agents = self.pairing.agent
            if agents != pairing.agent:
                self._exchange_agents(pairing.agent)
            self.pairing = pairing
            self.until(self.agents_connected, "the server knows the agents of all nodes")

    def unbridge(self) -> Json:
        """`bootbridge down`: its receipt."""
        with self.timed(f"down: {self.pairing or 'nothing there'}"):
            done = self.bootbridge("down", "--json")
        self.pairing = None
        assert done.returncode == 0, done.stdout + done.stderr
        receipt: Json = json.loads(done.stdout)
        return receipt

    def lay_again(self) -> Done:
        """`bootbridge up` as the record has it."""
        done = self.bootbridge("up")
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    @property
    def plan(self) -> Plan:
        path = KUBEADM_PATHS.plan_record
        return plan_record.load(self.lab.file("bootstrap", path).read_bytes(), path)

    def agents_connected(self) -> bool:
        """Whether every node's agent has its stream, counted by the server, which both kinds do."""
        return self.connected_agents() == len(self.lab.layout.cluster_nodes)

    def connected_agents(self, admin_port: int = 0) -> int:
        """As the server's own metric counts them."""
        page = self.on_bootstrap(f"http://127.0.0.1:{admin_port or self.plan.ports.server_admin}/metrics")
        names = ("konnectivity_network_proxy_server_ready_backend_connections",)
        found = [line for line in page.splitlines() if line.startswith(names)]
        return sum(int(float(line.rpartition(" ")[2])) for line in found)

    def on_bootstrap(self, url: str) -> str:
        """What a plain GET on the bootstrap node's network brings."""
        argv = [sys.executable, "-c", _GET, url]
        done = self.lab.space("bootstrap").run(argv, network_only=True)
        assert done.returncode == 0, done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return done.stdout.decode()

    def _up(self, pairing: Pairing) -> None:
        if self.pairing:
            self.end_agents()
        flags = self.lab.bridge_flags(_IMAGES[pairing.server].reference)
        done = self.bootbridge("up", *flags, f"--protocol={pairing.protocol}")
        assert done.returncode == 0, done.stdout + done.stderr

    def _exchange_agents(self, kind: str) -> None:
        """The DaemonSet as the same plan has it with the other image."""
        plan = replace(self.plan, image=_IMAGES[kind])
        read = [
            self.lab.file("bootstrap", path).read_bytes()
            for path in (plan.paths.ca_cert, plan.paths.agent_cert, plan.paths.agent_key)
        ]
        values = node_values(
            plan,
            plan.image.reference,
            self.lab.layout.bootstrap.addresses,
            ca=read[0],
            agent_cert=read[1],
            agent_key=read[2],
        )
        text = manifests.to_yaml(manifests.agent_daemonset(plan, values))
        words = ("--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}")
        self.end_agents()
        self.kubectl("apply", *words, "-f", "-", input=text)
        self.rolled_out(plan.namespace, plan.daemonset_name)

    def end_agents(self) -> None:
        """The DaemonSet and its pods go, without the time that agents have for draining."""
        inside = f"--namespace={self.plan.namespace}"
        self.kubectl("delete", "daemonset", self.plan.daemonset_name, inside, "--cascade=orphan")
        self.kubectl("delete", "pods", "--all", inside, "--grace-period=1", seconds=WAIT_SECONDS)

    # --- what lies and runs on the bootstrap node

    def traces(self) -> set[str]:
        """Files, sockets, listening ports and processes of the bootstrap node, without their numbers."""
        return {*self._files(), *self._ports(), *self._processes()}

    def _files(self) -> Iterator[str]:
        root = self.lab.file("bootstrap", "/")
        for top in ("etc", "opt", "run", "usr/local", "var/lib", "var/log"):
            for folder, folders, names in os.walk(root / top):
                inside = Path("/") / Path(folder).relative_to(root)
                folders[:] = [name for name in folders if str(inside / name) not in _OTHERS]
                for name in (*folders, *names):
                    yield f"{inside / name} ({_content(Path(folder) / name)})"

    def _ports(self) -> Iterator[str]:
        pid = self.lab.space("bootstrap").pid
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                # What a program picks for itself is another one each time.
                if fields[3] == "0A" and port < _EPHEMERAL:
                    yield f"TCP port {port}"

    def _processes(self) -> Iterator[str]:
        running = self.command_lines()
        for name in ("proxy-server", "proxy-agent", "--egress-selector-config-file"):
            if name in running:
                yield f"a process with {name}"

    def command_lines(self) -> str:
        """Of all processes on the bootstrap node."""
        return (
            self.lab.space("bootstrap")
            .must("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null; true")
            .decode(errors="replace")
        )


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "no file"


_GET = "import sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(sys.argv[1], timeout=10).read())"
_EPHEMERAL = 32768
# The homes of containerd, kubelet and etcd, who keep books of their own; and our receipt, which is to stay.
_OTHERS = frozenset(
    (
        "/run/containerd",
        "/run/etcd",
        "/run/netns",
        "/var/lib/containerd",
        "/var/lib/kubelet",
        "/var/log/pods",
        "/var/log/containers",
        "/var/log/bootbridge",
    )
)
