"""One real bootstrap: a lab, what runs in its cluster, and bridges of all kinds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from bootbridge.bootstrap.machine.node_values import node_values
from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.paths import KUBEADM_PATHS
from bootbridge.bootstrap.plan.plan import Plan, ProxyImage
from bootbridge.bootstrap.render import manifests
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.kube.objects import FIELD_MANAGER
from bootbridge.lab import components, init, permanent_apiserver, workloads
from bootbridge.lab.bring_up import LabBuilder
from bootbridge.lab.credentials import ADMIN_KUBECONFIG
from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE, Images
from bootbridge.lab.lab import KUBECTL_CACHE, Lab
from bootbridge.lab.layout import Layout
from tests.support.process_program import ROOT

IMAGES = ROOT / "build" / "lab-images"
# In the environment of a story that is told beside others (tests/e2e/run.py): its name.
SCENARIO = "BOOTBRIDGE_E2E_SCENARIO"
RESULTS = ROOT / "build" / "e2e"
CALL_SECONDS = 60.0
# Generous: two cores carry three kubelets and a control plane, and maybe more.
WAIT_SECONDS = 240.0
UP_SECONDS = 900.0
# Between two looks at something that is waited for; the last for as long as it takes.
PAUSES = (0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.5, 0.5, 1.0)
# For what costs nothing to look at, or is soon over.
SHORT_PAUSES = (0.02,)
GUARDED = "guarded"

Json = dict[str, Any]
Done = subprocess.CompletedProcess[str]


def missing() -> str:
    """What keeps the tests marked `e2e` from running here, in words; empty when nothing does."""
    if os.geteuid() != 0:
        return "a lab makes namespaces and mounts: run it as root"
    try:
        components.find()
        components.find(bootstrapper=True)
    except OperatorError as error:
        return str(error)
    return "" if components.konnectivity_programs() else "the Go originals are missing: make peers"


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

    @property
    def slug(self) -> str:
        return f"{self.server}-{self.agent}-{self.protocol}"


OURS = Pairing("our", "our")
_IMAGES = {
    "our": ProxyImage("bootbridge", TUNNEL_IMAGE),
    "Go": ProxyImage("konnectivity", KONNECTIVITY_IMAGE),
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
    def up(
        cls,
        directory: Path,
        layout: Layout | None = None,
        tunnel_images: tuple[str, ...] = (TUNNEL_IMAGE,),
    ) -> Iterator[Cluster]:
        """Bring a lab up in `directory`; whatever happens, nothing of it is left afterwards."""
        found = components.find()
        lab = Lab(directory, layout or Layout())
        images = Images(IMAGES, found, components.konnectivity_programs())
        cluster = cls(lab, found, images)
        try:
            with cluster.timed("lab up"):
                LabBuilder(lab, found, images, Progress(sys.stderr), tunnel_images).bring_up()
            yield cluster
        finally:
            keep_logs(lab)
            with cluster.timed("lab down"):
                left = lab.down()
        assert left == [], "`lab down` leaves nothing"

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.timings[what] = time.monotonic() - started

    def start_permanent_apiserver(self, node: str = "node1") -> None:
        """A kube-apiserver on a cluster node, beside the pods, without an egress selector."""
        with self.timed("production kube-apiserver"):
            permanent_apiserver.start(self.lab, node, self.components, self.images, Progress(sys.stderr))

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
        self.kubectl("apply", "-f", "-", input=workloads.to_manifest_text(list(documents)))

    def create(self, document: Json, *words: str, **more: Any) -> Done:
        """What the API server says to a new object."""
        text = workloads.to_manifest_text([document])
        return self.kubectl("create", "-f", "-", *words, input=text, check=False, **more)

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """kubectl as long as the block; in the node's network alone, so that it is kubectl that is ended."""
        settings = {"KUBECONFIG": ADMIN_KUBECONFIG, "KUBECACHEDIR": KUBECTL_CACHE}
        seen = [f"{name}={self.lab.file('bootstrap', path)}" for name, path in settings.items()]
        argv = ["env", *seen, self.components["kubectl"], *words]
        process = subprocess.Popen(
            self.lab.namespaces("bootstrap").command(argv, network_only=True),
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
        until(condition, what, seconds)

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

    def bootbridge(self, *words: str, seconds: float = UP_SECONDS) -> Done:
        """Run our own program on the bootstrap node; exit code and words are the caller's to judge."""
        argv = self.lab.bootbridge(*words)
        return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)

    def install_tunnel(self, pairing: Pairing = OURS) -> None:
        """Bring the bridge into this shape, from whichever it has, and wait until it carries."""
        if self.pairing == pairing:
            self.until(self.agents_connected, "the server knows the agents of all nodes")
            return
        if self.pairing and self.pairing.protocol != pairing.protocol:
            self.end_agents()
            self.remove_tunnel()
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

    def remove_tunnel(self) -> Json:
        """`bootbridge down`: its receipt."""
        with self.timed(f"down: {self.pairing or 'nothing there'}"):
            done = self.bootbridge("down", "--json")
        self.pairing = None
        assert done.returncode == 0, done.stdout + done.stderr
        receipt: Json = json.loads(done.stdout)
        return receipt

    def repeat_up(self) -> Done:
        """`bootbridge up` as the record has it."""
        done = self.bootbridge("up")
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    @property
    def plan(self) -> Plan:
        path = KUBEADM_PATHS.plan_record
        return record.load(self.lab.file("bootstrap", path).read_bytes(), path)

    def agents_connected(self) -> bool:
        """Whether every node's agent has its stream, counted by the server, which both kinds do."""
        return self.connected_agents() == len(self.lab.layout.cluster_nodes)

    def connected_agents(self, admin_port: int = 0) -> int:
        """As the server's own metric counts them."""
        return int(self.server_metric("ready_backend_connections", admin_port))

    def dials(self) -> float:
        """Connections that the tunnel has made so far, whoever asked for them."""
        return self.server_metric("dial_duration_seconds_count")

    def server_metric(self, name: str, admin_port: int = 0) -> float:
        """One of the tunnel server's, over all of its labels; both kinds of server have the same names."""
        page = self.on_bootstrap(f"http://127.0.0.1:{admin_port or self.plan.ports.server_admin}/metrics")
        full = f"konnectivity_network_proxy_server_{name}"
        found = [line for line in page.splitlines() if line.startswith((f"{full} ", f"{full}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def on_bootstrap(self, url: str) -> str:
        """What a plain GET on the bootstrap node's network brings."""
        argv = [sys.executable, "-c", _GET, url]
        done = self.lab.namespaces("bootstrap").run(argv, network_only=True)
        assert done.returncode == 0, done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return done.stdout.decode()

    def _up(self, pairing: Pairing) -> None:
        if self.pairing:
            self.end_agents()
        flags = self.lab.tunnel_flags(_IMAGES[pairing.server].reference)
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

    # --- what a bridge could leave

    def cluster_objects(self) -> set[str]:
        """The names of all objects that belong to no namespace, namespaces among them."""
        asked = ("api-resources", "--verbs=list", "--namespaced=false", "-o", "name")
        # The lab's own API is served by way of the tunnel, which may be gone; kubectl complains of that.
        kinds = self.kubectl(*asked, check=False).stdout.split()
        assert {"nodes", "namespaces", "clusterroles.rbac.authorization.k8s.io"} <= set(kinds)
        return set(self.kubectl("get", ",".join(kinds), "-o", "name", "--ignore-not-found").stdout.split())

    def traces(self) -> set[str]:
        """Files, sockets, listening ports and processes of the bootstrap node, without their numbers."""
        return {*self._files(), *self.ports(), *self._processes()}

    def _files(self) -> Iterator[str]:
        """What the node itself has written or removed, and not what it sees of this machine's files."""
        node = self.lab.directory / "nodes" / "bootstrap"
        places = {path: node / init.directory_name(path) / "upper" for path in init.OVERLAID}
        places |= {path: node / init.directory_name(path) for path in init.BOUND if path not in _OTHERS}
        places["/run"] = self.lab.file("bootstrap", "/run")
        for top, place in places.items():
            for folder, folders, names in os.walk(place):
                inside = Path(top) / Path(folder).relative_to(place)
                folders[:] = [name for name in folders if str(inside / name) not in _OTHERS]
                for name in (*folders, *names):
                    yield f"{inside / name} ({_content(Path(folder) / name)})"

    def ports(self) -> Iterator[str]:
        """Those that somebody listens on."""
        pid = self.lab.namespaces("bootstrap").pid
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
            self.lab.namespaces("bootstrap")
            .run_checked("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null; true")
            .decode(errors="replace")
        )


def keep_logs(lab: Lab) -> None:
    """What a lab's programs and pods have said outlives it, for whoever looks into a failure afterwards."""
    kept = RESULTS / os.environ.get(SCENARIO, "alone") / f"{lab.layout.families}-{lab.layout.nodes}"
    shutil.rmtree(kept, ignore_errors=True)
    said = {kept / "programs": lab.directory / "logs"}
    for node in lab.layout.all_nodes:
        home = lab.directory / "nodes" / node.name / init.directory_name("/var/log")
        said[kept / "pods" / node.name] = home / "pods"
    for copy, original in said.items():
        # A lab that never came up has none, and one that runs may just turn a page: it goes down anyway.
        with suppress(OSError):
            shutil.copytree(original, copy)


def _content(path: Path) -> str:
    try:
        if path.is_symlink():
            return f"link to {path.readlink()}"
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "no file"
    except FileNotFoundError:
        return "just removed"


_GET = "import sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(sys.argv[1], timeout=10).read())"
_EPHEMERAL = 32768
# Data directories of containerd, kubelet, etcd and kubectl; and our receipt, which `down` leaves on purpose.
_OTHERS = frozenset(
    (
        "/run/containerd",
        "/run/etcd",
        "/run/kubectl",
        "/run/netns",
        "/var/lib/containerd",
        "/var/lib/kubelet",
        "/var/log/pods",
        "/var/log/containers",
        "/var/log/bootbridge",
    )
)


# One that is empty or half there is as good as none, as is that of a program which could not run on its node.
_NO_ANSWER = (AssertionError, subprocess.TimeoutExpired, ValueError, LookupError, OperatorError)


def until(
    condition: Callable[[], object], what: str, seconds: float, pauses: Sequence[float] = PAUSES
) -> None:
    """Wait for a condition; if it fails or is false, it is asked again until the deadline.

    Less and less often: most conditions start a kubectl, which takes the processor from what is waited for.
    """
    deadline = time.monotonic() + seconds
    for pause in chain(pauses, repeat(pauses[-1])):
        try:
            if condition():
                return
            why = ""
        except _NO_ANSWER as error:
            why = f": {type(error).__name__} {error}"
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}{why}"
        time.sleep(pause)
