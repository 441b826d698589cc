"""A whole lab: brought up step by step, looked at, and taken down without a trace.

Everything a lab is lies in one directory, and in namespaces that live as long as processes
that are called after it. Whatever dies, `down` needs nothing but the directory.
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
# The first that is written into a lab's directory, and the last that goes: it says that this is a lab.
LAYOUT = "layout.json"
IMAGES = "images"
UP = "up"
# All else that a lab keeps there. What has another name is somebody else's, and is never removed.
KEPT = ("nodes", "namespaces", "logs", "operator", UP)
# For one answer of an API server.
CALL_SECONDS = 20.0
# As `timeout` has it.
TIMED_OUT = 124
STEP_SECONDS = 120.0
KUBECTL_CACHE = "/run/kubectl"
# What programs on a node see of our own environment: nothing but where programs are.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


@dataclass(frozen=True)
class Lab:
    """One lab by its directory; nothing is held in memory that is not there."""

    directory: Path
    layout: Layout

    # --- what there is

    @classmethod
    def open(cls, directory: Path) -> Lab:
        """The lab in a directory; an error if there is none."""
        try:
            document = json.loads((directory / LAYOUT).read_bytes())
            return cls(
                directory, Layout(document["nodes"], document["families"], document.get("controlPlanes", 0))
            )
        except FileNotFoundError:
            raise OperatorError(
                f"there is no lab in {directory}", hint="make one with `bootbridge lab up`"
            ) from None
        except (ValueError, KeyError) as error:
            hint = "`bootbridge lab down` removes it"
            raise OperatorError(f"{directory}/{LAYOUT} is broken: {error}", hint=hint) from None

    @property
    def image_directory(self) -> Path:
        """Where images are kept from lab to lab; several labs may share one."""
        # From the root of the file system: a node's programs are somewhere else than we are.
        return Path(os.environ.get("BOOTBRIDGE_LAB_IMAGES") or self.directory / IMAGES).resolve()

    @property
    def cgroups(self) -> Cgroups:
        return Cgroups(self.directory)

    @property
    def exists(self) -> bool:
        """Whether there is something to take down; nodes outlive the removal of their directory."""
        return self._has_layout or bool(self._holders()) or self.cgroups.exist

    def namespaces(self, name: str) -> NodeNamespaces:
        """A node's namespaces, which must be alive."""
        try:
            namespaces = NodeNamespaces.load((self.directory / "namespaces" / name).read_text())
        except (OSError, ValueError, KeyError):
            self.layout.node(name)
            raise OperatorError(f"the node {name} is not up", hint="bootbridge lab up") from None
        if not namespaces.alive:
            raise OperatorError(f"the node {name} has died", hint="bootbridge lab down, then up again")
        return namespaces

    def live_namespaces(self) -> list[NodeNamespaces]:
        """Every recorded namespaces that is alive."""
        found = []
        for path in sorted((self.directory / "namespaces").glob("*")):
            try:
                found.append(NodeNamespaces.load(path.read_text()))
            except (OSError, ValueError, KeyError):
                continue
        return [namespaces for namespaces in found if namespaces.alive]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one brings a lab up or down at a time; the claim ends with the process, however it ends."""
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _lock(descriptor, self.directory)
            yield
        finally:
            os.close(descriptor)

    def file(self, node: str, path: str) -> Path:
        """A file of a node, as this machine reaches it."""
        return resolve_in_root(Path(f"/proc/{self.namespaces(node).pid}/root"), path)

    # --- coming up

    def check_not_in_use(self) -> None:
        """A lab that is up stays, and so does whatever is no lab's."""
        if self.live_namespaces() and (self.directory / UP).exists():
            raise OperatorError(
                f"a lab runs in {self.directory}", hint="bootbridge lab status; bootbridge lab down"
            )
        if strange := self._foreign_names():
            told = ", ".join(strange[:3]) + (", …" if strange[3:] else "")
            hint = "choose a directory that is new or empty"
            raise OperatorError(
                f"{self.directory} holds what is no lab's: {told}", subject="--dir", hint=hint
            )

    def create_directory(self) -> None:
        """Make room: what is left of a lab that never was up goes."""
        self.check_not_in_use()
        if left := self.down():
            raise OperatorError(f"left from an earlier lab, and in the way: {'; '.join(left)}")
        self.directory.mkdir(parents=True, exist_ok=True)
        told = {
            "nodes": self.layout.nodes,
            "families": self.layout.families,
            "controlPlanes": self.layout.control_planes,
        }
        write_file(self.directory / LAYOUT, Asset(json.dumps(told).encode()))
        (self.directory / "namespaces").mkdir()

    def mark_as_up(self) -> None:
        """From here on the lab is one that is up."""
        write_file(self.directory / UP, Asset(b""))

    def create_machines(self) -> None:
        """Namespaces, a switch, and a cable to each."""
        switch = self._create_namespaces(SWITCH)
        network.build_switch(switch)
        for node in self.layout.all_nodes:
            self.create_machine(node)

    def create_machine(self, node: LabNode) -> None:
        """One node's namespaces, its cable, and its ways to the pods of others."""
        namespaces = self._create_namespaces(node.name)
        network.connect_node(self.namespaces(SWITCH), namespaces, node, self.layout)
        if node.pod_subnets:
            network.add_pod_routes(namespaces, node, self.layout)
        # Whoever looks around by `lab shell` finds our program where it would be.
        program = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m bootbridge.cli.main "$@"\n'
        self.write(
            node.name,
            {"/usr/local/bin/bootbridge": Asset(program.encode(), 0o755), **node_runtime.resolver_config()},
        )

    def start_runtime(self, node: LabNode, components: Components) -> None:
        """containerd, and its network for pods where there are any."""
        tree = node_runtime.containerd_config(str(components.cni))
        if node.pod_subnets:
            tree = {**tree, **node_runtime.cni_config(node)}
        self.write(node.name, tree)
        self.start(
            node.name, "containerd", [components["containerd"], f"--config={node_runtime.CONTAINERD_CONFIG}"]
        )
        socket = self.file(node.name, node_runtime.CONTAINERD_SOCKET)
        self.until(socket.exists, f"containerd answers on {node.name}")

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
            # In memory: a lab is not kept, and a disk would only make it wait.
            "--data-dir=/run/etcd",
            f"--listen-client-urls=http://{control_plane.everywhere(self.layout)}:{port}",
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

    # --- while it runs

    def write(self, node: str, tree: Tree) -> None:
        for path, asset in tree.items():
            target = self.file(node, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            write_file(target, asset)

    def start(self, node: str, name: str, argv: Sequence[str]) -> None:
        self.namespaces(node).spawn(name, argv, self.log(node, name), ENVIRONMENT)

    def log(self, node: str, name: str) -> Path:
        return self.directory / "logs" / node / f"{name}.log"

    def kubectl(self, components: Components, *words: str, node: str = "") -> list[str]:
        """The command that asks the API server of a node, of the first if none is named, as administrator."""
        # What kubectl remembers of an API is the node's, and not this machine's: labs share their addresses.
        settings = (f"KUBECONFIG={ADMIN_KUBECONFIG}", f"KUBECACHEDIR={KUBECTL_CACHE}")
        argv = ["env", *settings, components["kubectl"]]
        if node and self.layout.blank:
            # What kubeadm writes on every control plane leads to the one endpoint of all.
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
        """Run kubectl to its end; one that is too late has failed, as any other that does not succeed."""
        argv = self.kubectl(components, *words, node=node)
        stdin = subprocess.DEVNULL if input is None else None
        try:
            return subprocess.run(argv, input=input, stdin=stdin, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            said = f"no answer within {seconds:.0f} s"
            return subprocess.CompletedProcess(argv, TIMED_OUT, b"", said.encode())

    def apiserver_is_ready(self, components: Components, node: str = "") -> bool:
        """Whether the API server of a node answers, and says that it is ready."""
        return self.ask(components, "get", "--raw", "/readyz", node=node).returncode == 0

    def bootbridge(self, *words: str) -> list[str]:
        """The command that runs our own program on the bootstrap node."""
        return self.namespaces("bootstrap").command([sys.executable, "-m", "bootbridge.cli.main", *words])

    def tunnel_flags(self, image: str = TUNNEL_IMAGE) -> list[str]:
        """The plan of this lab's bridge, as flags of `bootbridge up`."""
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
                raise OperatorError(
                    f"not within {seconds:.0f} s: {what}", hint=f"logs are in {self.directory}/logs"
                )
            time.sleep(0.1)

    # --- going down

    def down(self) -> list[str]:
        """End everything and remove what it kept but the images; what could not be removed is returned."""
        nodes, all_namespaces = self._nodes, self._holders()
        known = processes_using(nodes) | {namespaces.pid: namespaces.started for namespaces in all_namespaces}
        for namespaces in all_namespaces:
            namespaces.kill()
        left = [f"{each} does not end" for each in wait_until_ended(nodes, known, STOP_SECONDS)]
        left += self.cgroups.remove()
        left += self._remove_files()
        remove_unfinished(self.image_directory)
        return left

    @property
    def _nodes(self) -> Path:
        """Where nodes keep their files, by which all that runs on them is found."""
        return self.directory.resolve() / "nodes"

    def _holders(self) -> list[NodeNamespaces]:
        return NodeNamespaces.find_below(self._nodes)

    @property
    def _has_layout(self) -> bool:
        return (self.directory / LAYOUT).exists()

    def _foreign_names(self) -> list[str]:
        """Names in the directory that no lab has given."""
        known = {IMAGES, LAYOUT, *KEPT} if self._has_layout else {IMAGES}
        names = os.listdir(self.directory) if self.directory.exists() else []
        return sorted(name for name in names if name not in known and not name.startswith(_TEMPORARIES))

    def _remove_files(self) -> list[str]:
        """Those of a lab, by their names; a directory that is no lab's is left alone."""
        left = [name for name in KEPT if not _removed(self.directory / name)] if self._has_layout else []
        names = os.listdir(self.directory) if self.directory.exists() else []
        for name in [name for name in names if name.startswith(_TEMPORARIES)]:
            _removed(self.directory / name)
        if not left:
            _removed(self.directory / LAYOUT)
        return [str(self.directory / name) for name in left]

    def _create_namespaces(self, name: str) -> NodeNamespaces:
        # Here and not by whoever writes first: a late one does not bring back the logs of a lab that is gone.
        (self.directory / "logs" / name).mkdir(parents=True, exist_ok=True)
        namespaces = NodeNamespaces.create(name, self._nodes / name, self.cgroups.make(name))
        write_file(self.directory / "namespaces" / name, Asset(namespaces.dump().encode()))
        return namespaces


# What `write_file` leaves of these when it is killed.
_TEMPORARIES = (f".{LAYOUT}.", f".{UP}.")


def _removed(path: Path) -> bool:
    """Whether it is gone; most of a lab's files are directories."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
    return not path.exists()


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OperatorError(
            f"another command is bringing the lab in {directory} up or down",
            hint="wait until it has ended, or end it",
        ) from None
