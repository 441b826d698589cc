"""A lab: the operations that bring it up, inspect it, and take it down completely.

A lab's state is its directory and its running namespaces, whose first processes have that directory on their
command line. So `down` needs only the directory, in any state of the lab.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.files import Asset, Tree, write_file
from bootbridge.errors import OperatorError
from bootbridge.lab import control_plane, network, node_runtime
from bootbridge.lab.cgroups import Cgroups
from bootbridge.lab.components import Components
from bootbridge.lab.credentials import ADMIN_KUBECONFIG, Credentials, apiserver_url
from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE, remove_unfinished
from bootbridge.lab.layout import LabNode, Layout
from bootbridge.lab.namespaces import STOP_SECONDS, NodeNamespaces
from bootbridge.lab.path_in_root import resolve_in_root
from bootbridge.lab.processes import processes_using, wait_until_ended

SWITCH = "switch"
# Marks a directory as a lab's: written first, removed last.
LAYOUT = "layout.json"
IMAGES = "images"
UP = "up"
# Everything else that a lab creates there. Other names are never removed.
KEPT = ("nodes", "namespaces", "logs", "operator", UP)
# Timeout of one kubectl call.
CALL_SECONDS = 20.0
# The exit code of timeout(1).
TIMED_OUT = 124
STEP_SECONDS = 120.0
KUBECTL_CACHE = "/run/kubectl"
# The environment of programs on a node; nothing is inherited.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


@dataclass(frozen=True)
class Lab:
    """One lab; all state is in its directory and in the kernel."""

    directory: Path
    layout: Layout

    # --- state

    @classmethod
    def open(cls, directory: Path) -> Lab:
        """Returns the lab in a directory; raises OperatorError if there is none."""
        try:
            document = json.loads((directory / LAYOUT).read_bytes())
            return cls(
                directory, Layout(document["nodes"], document["families"], document.get("controlPlanes", 0))
            )
        except FileNotFoundError:
            hint = "create one with `bootbridge lab up`"
            raise OperatorError("no lab found", subject=str(directory), hint=hint) from None
        except (ValueError, KeyError) as error:
            hint = "remove the lab with `bootbridge lab down`"
            problem = f"invalid lab layout: {error}"
            raise OperatorError(problem, subject=f"{directory}/{LAYOUT}", hint=hint) from None

    @property
    def image_directory(self) -> Path:
        """Where images are kept for the next lab; several labs may share it."""
        # Absolute: programs on a node have another working directory.
        return Path(os.environ.get("BOOTBRIDGE_LAB_IMAGES") or self.directory / IMAGES).resolve()

    @property
    def cgroups(self) -> Cgroups:
        return Cgroups(self.directory)

    @property
    def exists(self) -> bool:
        """Whether there is anything to take down; nodes keep running if their directory is removed."""
        return self._has_layout or bool(self._running()) or self.cgroups.exist

    def namespaces(self, name: str) -> NodeNamespaces:
        """Returns a node's namespaces; raises OperatorError unless the node runs."""
        try:
            namespaces = NodeNamespaces.load((self.directory / "namespaces" / name).read_text())
        except (OSError, ValueError, KeyError):
            self.layout.node(name)
            hint = "run `bootbridge lab up`"
            raise OperatorError("node not running", subject=name, hint=hint) from None
        if not namespaces.alive:
            hint = "run `bootbridge lab down`, then `bootbridge lab up`"
            raise OperatorError("node has died", subject=name, hint=hint)
        return namespaces

    def live_namespaces(self) -> list[NodeNamespaces]:
        """Returns the recorded namespaces that still run."""
        found = []
        for path in sorted((self.directory / "namespaces").glob("*")):
            try:
                found.append(NodeNamespaces.load(path.read_text()))
            except (OSError, ValueError, KeyError):
                continue
        return [each for each in found if each.alive]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lab's lock: one command at a time brings it up or down. Released at exit."""
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _lock(descriptor, self.directory)
            yield
        finally:
            os.close(descriptor)

    def file(self, node: str, path: str) -> Path:
        """Returns the path on this machine of a node's file."""
        return resolve_in_root(Path(f"/proc/{self.namespaces(node).pid}/root"), path)

    # --- up

    def check_not_in_use(self) -> None:
        """Raises OperatorError if a lab runs in the directory, or if it holds files that are not a lab's."""
        if self.live_namespaces() and (self.directory / UP).exists():
            hint = "see `bootbridge lab status`, or remove it with `bootbridge lab down`"
            raise OperatorError("lab already running", subject=str(self.directory), hint=hint)
        if foreign := self._foreign_names():
            names = ", ".join(foreign[:3]) + (", …" if foreign[3:] else "")
            problem = f"directory {self.directory} contains files that are not a lab's: {names}"
            raise OperatorError(problem, subject="--dir", hint="choose a new or empty directory")

    def create_directory(self) -> None:
        """Creates the directory, after removing what an interrupted `up` left."""
        self.check_not_in_use()
        if left := self.down():
            problem = f"cannot remove the remains of an earlier lab: {'; '.join(left)}"
            raise OperatorError(problem, subject=str(self.directory))
        self.directory.mkdir(parents=True, exist_ok=True)
        layout = {
            "nodes": self.layout.nodes,
            "families": self.layout.families,
            "controlPlanes": self.layout.control_planes,
        }
        write_file(self.directory / LAYOUT, Asset(json.dumps(layout).encode()))
        (self.directory / "namespaces").mkdir()

    def mark_as_up(self) -> None:
        """Records that the lab is completely up."""
        write_file(self.directory / UP, Asset(b""))

    def create_machines(self) -> None:
        """Creates the switch and all nodes."""
        switch = self._create_namespaces(SWITCH)
        network.build_switch(switch)
        for node in self.layout.all_nodes:
            self.create_machine(node)

    def create_machine(self, node: LabNode) -> None:
        """Creates a node: its namespaces, its link, and its routes to the pods of other nodes."""
        namespaces = self._create_namespaces(node.name)
        network.connect_node(self.namespaces(SWITCH), namespaces, node, self.layout)
        if node.pod_subnets:
            network.add_pod_routes(namespaces, node, self.layout)
        # So that `lab shell` finds the program in PATH.
        program = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m bootbridge.cli.main "$@"\n'
        self.write(
            node.name,
            {"/usr/local/bin/bootbridge": Asset(program.encode(), 0o755), **node_runtime.resolver_config()},
        )

    def start_runtime(self, node: LabNode, components: Components) -> None:
        """Starts containerd, with a CNI configuration if the node has pods; returns when it listens."""
        tree = node_runtime.containerd_config(str(components.cni))
        if node.pod_subnets:
            tree = {**tree, **node_runtime.cni_config(node)}
        self.write(node.name, tree)
        self.start(
            node.name, "containerd", [components["containerd"], f"--config={node_runtime.CONTAINERD_CONFIG}"]
        )
        socket = self.file(node.name, node_runtime.CONTAINERD_SOCKET)
        self.until(socket.exists, f"containerd on {node.name}")

    def start_kubelet(self, node: LabNode, components: Components, *, standalone: bool) -> None:
        self.write(node.name, node_runtime.kubelet_config(node, standalone=standalone))
        self.file(node.name, node_runtime.STATIC_PODS).mkdir(parents=True, exist_ok=True)
        argv = [components["kubelet"], *node_runtime.kubelet_arguments(node, standalone=standalone)]
        self.start(node.name, "kubelet", argv)

    def start_etcd(self, components: Components) -> None:
        node = self.layout.bootstrap
        port, peers = control_plane.ETCD_PORT, "http://127.0.0.1:2380"
        argv = [
            components["etcd"],
            "--name=lab",
            # A tmpfs: a lab's data is not kept, and a disk would slow it down.
            "--data-dir=/run/etcd",
            f"--listen-client-urls=http://{control_plane.any_address(self.layout)}:{port}",
            f"--advertise-client-urls=http://{control_plane.bracketed(str(node.address))}:{port}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=lab={peers}",
        ]
        self.start(node.name, "etcd", argv)

    def start_control_plane(self, credentials: Credentials, plan: Plan | None) -> None:
        node = self.layout.bootstrap
        self.write(node.name, credentials.control_plane(node, self.layout))
        self.write(node.name, control_plane.bootstrap_files(self.layout, plan))

    # --- running

    def write(self, node: str, tree: Tree) -> None:
        for path, asset in tree.items():
            target = self.file(node, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            write_file(target, asset)

    def start(self, node: str, name: str, argv: Sequence[str]) -> None:
        self.namespaces(node).spawn(argv, self.log(node, name), ENVIRONMENT)

    def log(self, node: str, name: str) -> Path:
        return self.directory / "logs" / node / f"{name}.log"

    def kubectl(self, components: Components, *words: str, node: str = "") -> list[str]:
        """Returns the command that runs kubectl as administrator on a node, by default on the first."""
        # The cache is the node's, not this machine's: all labs use the same addresses.
        settings = (f"KUBECONFIG={ADMIN_KUBECONFIG}", f"KUBECACHEDIR={KUBECTL_CACHE}")
        argv = ["env", *settings, components["kubectl"]]
        if node and self.layout.blank:
            # The kubeconfig that kubeadm writes names the shared endpoint on every control plane.
            argv.append(f"--server={apiserver_url(self.layout.node(node))}")
        return self.namespaces(node or self.layout.first.name).command([*argv, *words])

    def ask(
        self,
        components: Components,
        *words: str,
        node: str = "",
        input: bytes | None = None,
        seconds: float = CALL_SECONDS,
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs kubectl to its end; a timeout is reported as exit code TIMED_OUT."""
        argv = self.kubectl(components, *words, node=node)
        stdin = subprocess.DEVNULL if input is None else None
        try:
            return subprocess.run(argv, input=input, stdin=stdin, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            message = f"timed out after {seconds:g}s"
            return subprocess.CompletedProcess(argv, TIMED_OUT, b"", message.encode())

    def apiserver_is_ready(self, components: Components, node: str = "") -> bool:
        """Returns whether /readyz of a node's kube-apiserver reports ready."""
        return self.ask(components, "get", "--raw", "/readyz", node=node).returncode == 0

    def bootbridge(self, *words: str) -> list[str]:
        """Returns the command that runs `bootbridge` on the bootstrap node."""
        return self.namespaces("bootstrap").command([sys.executable, "-m", "bootbridge.cli.main", *words])

    def tunnel_flags(self, image: str = TUNNEL_IMAGE) -> list[str]:
        """Returns the flags of `bootbridge up` for this lab."""
        networks = self.layout.networks
        kind = "konnectivity" if image == KONNECTIVITY_IMAGE else "bootbridge"
        return [
            "--flavour=kubeadm",
            f"--image={image}",
            f"--image-is={kind}",
            *(f"--machine-network={network}" for network in networks.machine),
            *(f"--cluster-network={network.cidr},{network.host_prefix}" for network in networks.cluster),
            *(f"--service-network={network}" for network in networks.service),
        ]

    def until(self, condition: Callable[[], object], what: str, seconds: float = STEP_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                hint = f"see the logs in {self.directory}/logs"
                raise OperatorError(f"timed out after {seconds:g}s", subject=what, hint=hint)
            time.sleep(0.1)

    # --- down

    def down(self) -> list[str]:
        """Ends all processes and removes everything but the images; returns what could not be removed."""
        nodes, running = self._nodes, self._running()
        known = processes_using(nodes) | {each.pid: each.started for each in running}
        for each in running:
            each.kill()
        left = [f"{process} does not end" for process in wait_until_ended(nodes, known, STOP_SECONDS)]
        left += self.cgroups.remove()
        left += self._remove_files()
        remove_unfinished(self.image_directory)
        return left

    @property
    def _nodes(self) -> Path:
        """The directory of the nodes' files, by which their processes are found."""
        return self.directory.resolve() / "nodes"

    def _running(self) -> list[NodeNamespaces]:
        return NodeNamespaces.find_below(self._nodes)

    @property
    def _has_layout(self) -> bool:
        return (self.directory / LAYOUT).exists()

    def _foreign_names(self) -> list[str]:
        """Returns the names in the directory that a lab does not create."""
        known = {IMAGES, LAYOUT, *KEPT} if self._has_layout else {IMAGES}
        names = os.listdir(self.directory) if self.directory.exists() else []
        return sorted(name for name in names if name not in known and not name.startswith(_TEMPORARIES))

    def _remove_files(self) -> list[str]:
        """Removes a lab's files by their names; does nothing in a directory that is not a lab's."""
        left = [name for name in KEPT if not _removed(self.directory / name)] if self._has_layout else []
        names = os.listdir(self.directory) if self.directory.exists() else []
        for name in [name for name in names if name.startswith(_TEMPORARIES)]:
            _removed(self.directory / name)
        if not left:
            _removed(self.directory / LAYOUT)
        return [str(self.directory / name) for name in left]

    def _create_namespaces(self, name: str) -> NodeNamespaces:
        # Created only here: a late writer must not create the log directory of a removed lab again.
        (self.directory / "logs" / name).mkdir(parents=True, exist_ok=True)
        namespaces = NodeNamespaces.create(name, self._nodes / name, self.cgroups.make(name))
        write_file(self.directory / "namespaces" / name, Asset(namespaces.dump().encode()))
        return namespaces


# The temporary files of `write_file`, left if it is killed.
_TEMPORARIES = (f".{LAYOUT}.", f".{UP}.")


def _removed(path: Path) -> bool:
    """Removes a directory or file; returns whether it is gone."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
    return not path.exists()


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hint = "wait until it has ended, or stop it"
        problem = "locked: another command is bringing this lab up or down"
        raise OperatorError(problem, subject=str(directory), hint=hint) from None
