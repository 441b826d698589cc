"""Blank instances: nodes with containerd, a TPM, a kubelet without configuration, and `bootbridge node run`.

The operator initialises one, and the others join.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from bootbridge.common.files import Asset, write_file
from bootbridge.common.yaml_text import to_yaml
from bootbridge.errors import OperatorError
from bootbridge.lab import bootstrapper_files, inotify, kubelet_supervisor, network, tpm
from bootbridge.lab.bootstrapper_files import OperatorFiles
from bootbridge.lab.bring_up import Jobs, LabBuilder
from bootbridge.lab.components import Components
from bootbridge.lab.images import KUBEADM_REPOSITORY, NODE_IMAGE, TUNNEL_IMAGE, kubeadm_program
from bootbridge.lab.lab import SWITCH, Lab
from bootbridge.lab.layout import LabNode
from bootbridge.lab.node_runtime import PAUSE_IMAGE
from bootbridge.trust import init_secret

BOOTSTRAPPER = "bootstrapper"
PROGRAMS = "/usr/local/bin"
_ON_AN_INSTANCE = ("kubeadm", "kubelet", "kubectl")
_SUPERVISOR = (
    *(sys.executable, "-I", "-S", kubelet_supervisor.__file__),
    *("/run/kubelet-supervisor", "/var/lib/kubelet"),
)


@dataclass(frozen=True)
class InstancesBuilder(LabBuilder):
    """Brings up a lab of blank instances, without a cluster."""

    def bring_up(self) -> None:
        self.lab.check_not_in_use()
        network.check_ipv6(self.lab.layout)
        inotify.check_available(self.lab.layout)
        release = kubeadm_release(self.components)
        control_plane_images = kubeadm_images(self.components, release)
        self._together("images", self._all_images(control_plane_images))
        self.lab.create_directory()
        with self._step("machines"):
            self.lab.create_machines()
            network.add_operator_addresses(self.lab.namespaces(SWITCH), self.lab.layout)
        nodes = self.lab.layout.all_nodes
        boots: Jobs = {node.name: partial(self._first_boot, node, control_plane_images) for node in nodes}
        self._together("instances", boots)
        with self._step("metadata"):
            self._write_files(release, {node.name: tpm.identity(self.lab, node) for node in nodes})
        with self._step("bootbridge node run"):
            for node in nodes:
                start_bootstrapper(self.lab, node)
        self.lab.mark_as_up()

    def _all_images(self, of_kubeadm: tuple[str, ...]) -> Jobs:
        return {
            "bootbridge": lambda: self.images.prepare([NODE_IMAGE, TUNNEL_IMAGE]),
            "Kubernetes": lambda: self.images.prepare([PAUSE_IMAGE, *of_kubeadm]),
        }

    def _first_boot(self, node: LabNode, of_kubeadm: tuple[str, ...]) -> None:
        install(self.lab, node, self.components)
        boot(self.lab, node, self.components)
        controls = self.lab.layout.may_control(node)
        ours = (*of_kubeadm, NODE_IMAGE) if controls else ()
        self.images.import_into(self.lab.namespaces(node.name), PAUSE_IMAGE, *ours, TUNNEL_IMAGE)

    def _write_files(self, release: str, identities: Mapping[str, str]) -> None:
        """Writes metadata and configuration for each instance, and the operator's files."""
        secret, hashed = init_secret.make()
        files = operator_files(self.lab)
        files.directory.mkdir(mode=0o700)
        spec = bootstrapper_files.cluster_spec(self.lab.layout, release)
        write_file(files.spec, Asset(to_yaml(json.loads(spec.dump())), 0o600))
        policy = bootstrapper_files.policy(self.lab.layout, identities)
        write_file(files.policy, Asset(to_yaml(policy), 0o600))
        write_file(files.init_secret, Asset(secret, 0o600))
        for node in self.lab.layout.all_nodes:
            tree = bootstrapper_files.instance_files(self.lab.layout, node, identities, hashed)
            self.lab.write(node.name, tree)


def operator_files(lab: Lab) -> OperatorFiles:
    return OperatorFiles(lab.directory / "operator")


def install(lab: Lab, node: LabNode, components: Components) -> None:
    """Installs what an instance's boot image contains: Kubernetes programs and a `systemctl`."""
    folder = lab.file(node.name, PROGRAMS)
    folder.mkdir(parents=True, exist_ok=True)
    for name in _ON_AN_INSTANCE:
        # The overlay may show this machine's program there; the link replaces it on the node only.
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(components[name])
    script = f'#!/bin/sh\nexec {shlex.join(_SUPERVISOR)} systemctl "$@"\n'
    lab.write(node.name, {f"{PROGRAMS}/systemctl": Asset(script.encode(), 0o755)})


def boot(lab: Lab, node: LabNode, components: Components) -> None:
    """Starts what an instance starts at boot, except the bootstrapper."""
    tpm.start_tpm(lab, node, components)
    lab.start_runtime(node, components)
    lab.start(node.name, "kubelet", [*_SUPERVISOR, "supervise", f"{PROGRAMS}/kubelet"])


def start_bootstrapper(lab: Lab, node: LabNode) -> None:
    argv = [sys.executable, "-m", "bootbridge.cli.main", "node", "run"]
    lab.start(node.name, BOOTSTRAPPER, [*argv, f"--config={bootstrapper_files.INSTANCE_CONFIG}"])


def power_cycle(lab: Lab, node: LabNode, components: Components) -> None:
    """Restarts an instance: the disk and the TPM's keys are kept; PCRs and /run are reset."""
    lab.namespaces(node.name).end()
    lab.create_machine(node)
    boot(lab, node, components)


def reboot(lab: Lab, node: LabNode, components: Components) -> None:
    """Restarts an instance and its bootstrapper."""
    power_cycle(lab, node, components)
    start_bootstrapper(lab, node)


def init_command(lab: Lab, *words: str) -> list[str]:
    """Returns the command `bootbridge node init` for the first instance, with the operator's files."""
    files = operator_files(lab)
    argv = [
        *(sys.executable, "-m", "bootbridge.cli.main", "node", "init", str(lab.layout.first.address)),
        f"--spec={files.spec}",
        f"--policy={files.policy}",
        f"--init-secret-file={files.init_secret}",
        f"--secrets={files.master_secret}",
        f"--kubeconfig={files.kubeconfig}",
        *words,
    ]
    return lab.namespaces(SWITCH).command(argv, network_only=True)


def kubeadm_release(components: Components) -> str:
    return _kubeadm(components, "version", "--output=short").strip()


def kubeadm_images(components: Components, release: str) -> tuple[str, ...]:
    """Returns the images that kubeadm uses, without those of addons."""
    output = _kubeadm(
        components,
        *("config", "images", "list"),
        f"--kubernetes-version={release}",
        f"--image-repository={KUBEADM_REPOSITORY}",
    )
    return tuple(reference for reference in output.split() if kubeadm_program(reference))


def _kubeadm(components: Components, *words: str) -> str:
    done = subprocess.run([components["kubeadm"], *words], capture_output=True, text=True)
    if done.returncode:
        raise OperatorError(done.stderr.strip(), subject=f"kubeadm {words[0]}", hint="check --bin-dir")
    return done.stdout
