"""A whole lab: brought up step by step, looked at, and taken down without a trace.

Everything a lab is lies in one directory, and in namespaces that live as long as the
processes named there. Whatever dies, `down` needs nothing but the directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bootbridge.bootstrap.files import Asset, Tree, write_file
from bootbridge.bootstrap.plan import Plan
from bootbridge.errors import OperatorError
from bootbridge.lab import control_plane, node_runtime, wiring
from bootbridge.lab.cgroups import Cgroups
from bootbridge.lab.components import Components
from bootbridge.lab.credentials import ADMIN_KUBECONFIG, Credentials
from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE
from bootbridge.lab.layout import LabNode, Layout
from bootbridge.lab.space import Space

SWITCH = "switch"
UP = "up"
# For one answer to "are you ready".
READY_SECONDS = 20.0
STEP_SECONDS = 120.0
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
            document = json.loads((directory / "layout.json").read_bytes())
            return cls(directory, Layout(document["nodes"], document["families"]))
        except FileNotFoundError:
            raise OperatorError(
                f"there is no lab in {directory}", hint="make one with `bootbridge lab up`"
            ) from None
        except (ValueError, KeyError) as error:
            hint = "`bootbridge lab down` removes it"
            raise OperatorError(f"{directory}/layout.json is broken: {error}", hint=hint) from None

    @property
    def image_directory(self) -> Path:
        """Where images are kept from lab to lab; several labs may share one."""
        return Path(os.environ.get("BOOTBRIDGE_LAB_IMAGES") or self.directory / "images")

    @property
    def cgroups(self) -> Cgroups:
        return Cgroups(self.directory)

    def space(self, name: str) -> Space:
        """A node's namespaces, which must be alive."""
        try:
            space = Space.load((self.directory / "spaces" / name).read_text())
        except (OSError, ValueError, KeyError):
            self.layout.node(name)
            raise OperatorError(f"the node {name} is not up", hint="bootbridge lab up") from None
        if not space.alive:
            raise OperatorError(f"the node {name} has died", hint="bootbridge lab down, then up again")
        return space

    def spaces(self) -> list[Space]:
        """Every recorded space that is alive."""
        found = []
        for path in sorted((self.directory / "spaces").glob("*")):
            try:
                found.append(Space.load(path.read_text()))
            except (OSError, ValueError, KeyError):
                continue
        return [space for space in found if space.alive]

    @contextmanager
    def claimed(self) -> Iterator[None]:
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
        return Path(f"/proc/{self.space(node).pid}/root{path}")

    # --- coming up

    def refuse_if_up(self) -> None:
        """A lab that is up stays."""
        if self.spaces() and (self.directory / UP).exists():
            raise OperatorError(
                f"a lab runs in {self.directory}", hint="bootbridge lab status; bootbridge lab down"
            )

    def begin(self) -> None:
        """Make room: what is left of a lab that never was up goes."""
        self.refuse_if_up()
        if left := self.down():
            raise OperatorError(f"left from an earlier lab, and in the way: {'; '.join(left)}")
        (self.directory / "spaces").mkdir(parents=True, exist_ok=True)
        told = {"nodes": self.layout.nodes, "families": self.layout.families}
        write_file(self.directory / "layout.json", Asset(json.dumps(told).encode()))

    def finish(self) -> None:
        """From here on the lab is one that is up."""
        write_file(self.directory / UP, Asset(b""))

    def make_machines(self) -> None:
        """Namespaces, a switch, and a cable to each."""
        switch = self._make_space(SWITCH)
        wiring.build_switch(switch)
        for node in self.layout.all_nodes:
            self.make_machine(node)

    def make_machine(self, node: LabNode) -> None:
        """One node's namespaces, its cable, and its ways to the pods of others."""
        space = self._make_space(node.name)
        wiring.plug_in(self.space(SWITCH), space, node, self.layout)
        if node.pod_subnets:
            wiring.teach_pod_routes(space, node, self.layout)

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
            f"--listen-client-urls=http://[::]:{port}",
            f"--advertise-client-urls=http://{control_plane.bracketed(str(node.address))}:{port}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=lab={peers}",
        ]
        self.start(node.name, "etcd", argv)

    def start_control_plane(self, credentials: Credentials, plan: Plan | None) -> None:
        node = self.layout.bootstrap
        self.write(node.name, credentials.control_plane(node, self.layout))
        self.write(node.name, control_plane.bootstrap_tree(self.layout, plan))

    # --- while it runs

    def write(self, node: str, tree: Tree) -> None:
        for path, asset in tree.items():
            target = self.file(node, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            write_file(target, asset)

    def start(self, node: str, name: str, argv: Sequence[str]) -> None:
        self.space(node).spawn(name, argv, self.log(node, name), ENVIRONMENT)

    def log(self, node: str, name: str) -> Path:
        return self.directory / "logs" / node / f"{name}.log"

    def kubectl(self, components: Components, *words: str, node: str = "bootstrap") -> list[str]:
        """The command that asks the API server of a node, as its administrator."""
        argv = ["env", f"KUBECONFIG={ADMIN_KUBECONFIG}", components["kubectl"], *words]
        return self.space(node).command(argv)

    def api_ready(self, components: Components, node: str = "bootstrap") -> bool:
        """Whether the API server of a node answers, and says that it is ready."""
        argv = self.kubectl(components, "get", "--raw", "/readyz", node=node)
        try:
            done = subprocess.run(argv, capture_output=True, timeout=READY_SECONDS, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def bootbridge(self, *words: str) -> list[str]:
        """The command that runs our own program on the bootstrap node."""
        return self.space("bootstrap").command([sys.executable, "-m", "bootbridge.cli.main", *words])

    def bridge_flags(self, image: str = TUNNEL_IMAGE) -> list[str]:
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
        """End everything and remove the directory but the images; what could not be removed is returned."""
        nodes = (self.directory / "nodes").resolve()
        spaces = Space.found_below(nodes)
        for space in spaces:
            space.kill()
        left = []
        for space in spaces:
            try:
                space.end()
            except OperatorError as error:
                left.append(str(error))
        left += self.cgroups.remove()
        for path in self.directory.iterdir() if self.directory.exists() else ():
            if path.name != "images":
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
                if path.exists():
                    left.append(str(path))
        for unfinished in (self.directory / "images").glob(".*"):  # of an interrupted build
            unfinished.unlink(missing_ok=True)
        return left

    def _make_space(self, name: str) -> Space:
        space = Space.make(name, self.directory.resolve() / "nodes" / name, self.cgroups.make(name))
        write_file(self.directory / "spaces" / name, Asset(space.dump().encode()))
        return space


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OperatorError(
            f"another command is bringing the lab in {directory} up or down",
            hint="wait until it has ended, or end it",
        ) from None
