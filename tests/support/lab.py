"""A running lab for tests: kubectl, workloads, and the tunnel with any pairing of programs."""

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
from bootbridge.lab.credentials import ADMIN_KUBECONFIG, Credentials
from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE, Images
from bootbridge.lab.lab import KUBECTL_CACHE, Lab
from bootbridge.lab.layout import Layout
from tests.support.process_program import ROOT

IMAGES = ROOT / "build" / "lab-images"
# Environment variable: the name of the scenario, if several run concurrently (tests/e2e/run.py).
SCENARIO = "BOOTBRIDGE_E2E_SCENARIO"
RESULTS = ROOT / "build" / "e2e"
CALL_SECONDS = 60.0
# Two cores run three kubelets, a control plane, and possibly other scenarios.
WAIT_SECONDS = 240.0
UP_SECONDS = 900.0
# Pauses between two polls; the last one repeats.
PAUSES = (0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.5, 0.5, 1.0)
# For conditions that are cheap to check, or short.
SHORT_PAUSES = (0.02,)
GUARDED = "guarded"

Json = dict[str, Any]
Done = subprocess.CompletedProcess[str]


def missing() -> str:
    """Returns why the tests marked `e2e` cannot run here; empty if they can."""
    if os.geteuid() != 0:
        return "a lab needs root"
    try:
        components.find()
        components.find(bootstrapper=True)
    except OperatorError as error:
        return str(error)
    return (
        ""
        if components.konnectivity_programs()
        else "Konnectivity's Go programs not found (run `make peers`)"
    )


@dataclass(frozen=True)
class Pairing:
    """The implementations of server and agents, and the kube-apiserver's protocol."""

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
    """A lab that is up, and its API server."""

    lab: Lab
    components: components.Components
    images: Images
    credentials: Credentials
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
        """Brings a lab up in `directory`, and removes it at the end."""
        found = components.find()
        lab = Lab(directory, layout or Layout())
        images = Images(IMAGES, found, components.konnectivity_programs())
        builder = LabBuilder(lab, found, images, Progress(sys.stderr), tunnel_images)
        cluster = cls(lab, found, images, builder.credentials)
        try:
            with cluster.timed("lab up"):
                builder.bring_up()
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
        """Starts a kube-apiserver on a cluster node, without an egress selector."""
        with self.timed("permanent kube-apiserver"):
            permanent_apiserver.start(self.lab, node, self.components, self.images, Progress(sys.stderr))

    # --- kubectl

    def kubectl(
        self,
        *words: str,
        input: bytes | None = None,
        seconds: float = CALL_SECONDS,
        check: bool = True,
        node: str = "bootstrap",
    ) -> Done:
        """Runs kubectl on a node, against its API server; with `check`, asserts success."""
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
        """Runs `kubectl create`; the caller checks the result."""
        text = workloads.to_manifest_text([document])
        return self.kubectl("create", "-f", "-", *words, input=text, check=False, **more)

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Runs kubectl during the block, in the node's network namespace only, so that it can be killed."""
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

    # --- workloads

    def start_workloads(self) -> None:
        """Starts the extension server on every node, and registers webhooks and APIs."""
        self.apply(workloads.namespace(GUARDED, workloads.GUARDED), *workloads.Workloads.create().all())
        self.rolled_out(workloads.NAMESPACE, workloads.SERVICE)

    def rolled_out(self, namespace: str, daemon_set: str) -> None:
        """Waits until every node has a ready pod of the DaemonSet's newest revision."""
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

    # --- the tunnel

    def bootbridge(self, *words: str, seconds: float = UP_SECONDS) -> Done:
        """Runs `bootbridge` on the bootstrap node; the caller checks the result."""
        argv = self.lab.bootbridge(*words)
        return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)

    def with_kubectl(self, *words: str, seconds: float = CALL_SECONDS) -> Done:
        """Runs `bootbridge` on the bootstrap node, with kubectl in PATH and the admin kubeconfig."""
        settings = {
            "KUBECONFIG": ADMIN_KUBECONFIG,
            "KUBECACHEDIR": KUBECTL_CACHE,
            "PATH": f"{Path(self.components['kubectl']).parent}:{os.environ['PATH']}",
        }
        program = ["env", *(f"{name}={value}" for name, value in settings.items())]
        program += [sys.executable, "-m", "bootbridge.cli.main", *words]
        argv = self.lab.namespaces("bootstrap").command(program)
        return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)

    def install_tunnel(self, pairing: Pairing = OURS) -> None:
        """Installs the tunnel with this pairing, changes it if there is one, and waits for all agents."""
        if self.pairing == pairing:
            self.until(self.agents_connected, "all agents are connected")
            return
        if self.pairing and self.pairing.protocol != pairing.protocol:
            self.end_agents()
            self.remove_tunnel()
        with self.timed(f"tunnel: {pairing}"):
            if self.pairing is None or self.pairing.server != pairing.server:
                self._up(pairing)
                agents = pairing.server
            else:
                agents = self.pairing.agent
            if agents != pairing.agent:
                self._exchange_agents(pairing.agent)
            self.pairing = pairing
            self.until(self.agents_connected, "all agents are connected")

    def remove_tunnel(self) -> Json:
        """Runs `bootbridge down` and returns its receipt."""
        with self.timed(f"down: {self.pairing or 'nothing there'}"):
            done = self.bootbridge("down", "--json")
        self.pairing = None
        assert done.returncode == 0, done.stdout + done.stderr
        receipt: Json = json.loads(done.stdout)
        return receipt

    def repeat_up(self) -> Done:
        """Runs `bootbridge up` with the recorded plan."""
        done = self.bootbridge("up")
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    @property
    def plan(self) -> Plan:
        path = KUBEADM_PATHS.plan_record
        return record.load(self.lab.file("bootstrap", path).read_bytes(), path)

    def agents_connected(self) -> bool:
        """Returns whether the server counts one agent per node."""
        return self.connected_agents() == len(self.lab.layout.cluster_nodes)

    def connected_agents(self, admin_port: int = 0) -> int:
        """Returns the server's own count."""
        return int(self.server_metric("ready_backend_connections", admin_port))

    def dials(self) -> float:
        """Returns how many connections the tunnel has dialled so far."""
        return self.server_metric("dial_duration_seconds_count")

    def server_metric(self, name: str, admin_port: int = 0) -> float:
        """Returns a metric of the tunnel server, summed over its labels."""
        page = self.on_bootstrap(f"http://127.0.0.1:{admin_port or self.plan.ports.server_admin}/metrics")
        full = f"konnectivity_network_proxy_server_{name}"
        found = [line for line in page.splitlines() if line.startswith((f"{full} ", f"{full}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def on_bootstrap(self, url: str) -> str:
        return self.get_on("bootstrap", url)

    def get_on(self, node: str, url: str) -> str:
        """Returns the response of a GET in a node's network namespace."""
        argv = [sys.executable, "-c", _GET, url]
        done = self.lab.namespaces(node).run(argv, network_only=True)
        assert done.returncode == 0, done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return done.stdout.decode()

    def _up(self, pairing: Pairing) -> None:
        if self.pairing:
            self.end_agents()
        flags = self.lab.tunnel_flags(_IMAGES[pairing.server].reference)
        done = self.bootbridge("up", *flags, f"--protocol={pairing.protocol}")
        assert done.returncode == 0, done.stdout + done.stderr

    def _exchange_agents(self, kind: str) -> None:
        """Applies the DaemonSet of the same plan with the other image."""
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
        """Deletes the DaemonSet and its pods without waiting for draining."""
        inside = f"--namespace={self.plan.namespace}"
        self.kubectl("delete", "daemonset", self.plan.daemonset_name, inside, "--cascade=orphan")
        self.kubectl("delete", "pods", "--all", inside, "--grace-period=1", seconds=WAIT_SECONDS)

    # --- leftovers

    def cluster_objects(self) -> set[str]:
        """Returns the names of all cluster-scoped objects."""
        asked = ("api-resources", "--verbs=list", "--namespaced=false", "-o", "name")
        # The lab's aggregated API is unreachable without the tunnel, so kubectl may exit with an error.
        kinds = self.kubectl(*asked, check=False).stdout.split()
        assert {"nodes", "namespaces", "clusterroles.rbac.authorization.k8s.io"} <= set(kinds)
        return set(self.kubectl("get", ",".join(kinds), "-o", "name", "--ignore-not-found").stdout.split())

    def traces(self) -> set[str]:
        """Returns files, sockets, listening ports and processes of the bootstrap node."""
        return {*self._files(), *self.ports(), *self._processes()}

    def _files(self) -> Iterator[str]:
        """Yields what the node has written or removed, without this machine's files."""
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
        """Yields the listening ports below the ephemeral range."""
        pid = self.lab.namespaces("bootstrap").pid
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                # Ephemeral ports differ each time.
                if fields[3] == "0A" and port < _EPHEMERAL:
                    yield f"TCP port {port}"

    def _processes(self) -> Iterator[str]:
        running = self.command_lines()
        for name in ("proxy-server", "proxy-agent", "--egress-selector-config-file"):
            if name in running:
                yield f"a process with {name}"

    def command_lines(self) -> str:
        """Returns the command lines of all processes on the bootstrap node."""
        return (
            self.lab.namespaces("bootstrap")
            .run_checked("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null; true")
            .decode(errors="replace")
        )


def keep_logs(lab: Lab) -> None:
    """Copies the logs of a lab's programs and pods to build/e2e, to analyse a failure."""
    kept = RESULTS / os.environ.get(SCENARIO, "alone") / f"{lab.layout.families}-{lab.layout.nodes}"
    shutil.rmtree(kept, ignore_errors=True)
    logs = {kept / "programs": lab.directory / "logs"}
    for node in lab.layout.all_nodes:
        home = lab.directory / "nodes" / node.name / init.directory_name("/var/log")
        logs[kept / "pods" / node.name] = home / "pods"
    for copy, original in logs.items():
        # A lab that never came up has none, and a running one may rotate its logs.
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


# Errors of a condition that is checked again: no answer, an incomplete one, or a command that failed.
_NO_ANSWER = (AssertionError, subprocess.TimeoutExpired, ValueError, LookupError, OperatorError)


def until(
    condition: Callable[[], object], what: str, seconds: float, pauses: Sequence[float] = PAUSES
) -> None:
    """Waits until a condition is true; a false one, or one of the errors above, is checked again.

    With growing pauses: most conditions start a kubectl, which takes CPU time from the lab.
    """
    deadline = time.monotonic() + seconds
    for pause in chain(pauses, repeat(pauses[-1])):
        try:
            if condition():
                return
            why = ""
        except _NO_ANSWER as error:
            why = f": {type(error).__name__} {error}"
        assert time.monotonic() < deadline, f"timed out after {seconds:g}s: {what}{why}"
        time.sleep(pause)
