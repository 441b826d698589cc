"""Finds the programs of a lab, or reports all that are missing and how to get them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bootbridge.errors import OperatorError

# Built by `make kubernetes`, or in --bin-dir.
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
PAUSE = "pause"
# Built by `make kubernetes` too, for blank instances: etcd in the release that kubeadm's manifests name,
# which the packaged one is not.
BOOTSTRAPPER = ("kubeadm", "etcd")
# Not in a release of Kubernetes, so built here even with --bin-dir.
BUILT_HERE = (PAUSE, "etcd")
# Konnectivity's Go programs, built by `make peers`.
KONNECTIVITY_PROGRAMS = ("proxy-server", "proxy-agent")
# Program → Debian package.
PACKAGED = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "iptables": "iptables",
}
BOOTSTRAPPER_PACKAGED = {"swtpm": "swtpm"}
CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))
CNI_PLUGINS = ("bridge", "host-local", "loopback")


@dataclass(frozen=True)
class Components:
    """The path of every program, and the directory of the CNI plugins."""

    programs: dict[str, Path]
    cni: Path

    def __getitem__(self, name: str) -> str:
        return str(self.programs[name])


# The source tree, if this package runs from one; build/ is there.
SOURCES = Path(__file__).resolve().parents[3]


def default_bin_dir() -> Path:
    """Returns where `make kubernetes` puts the programs."""
    return SOURCES / (os.environ.get("BOOTBRIDGE_KUBERNETES") or "build/kubernetes") / "bin"


def konnectivity_programs() -> Path | None:
    """Returns the directory of Konnectivity's Go programs; None if they are not built."""
    path = SOURCES / (os.environ.get("BOOTBRIDGE_PEERS") or "build/peers")
    return path if all((path / name).exists() for name in KONNECTIVITY_PROGRAMS) else None


def find(bin_dir: Path | None = None, *, bootstrapper: bool = False) -> Components:
    """Returns all programs; raises one OperatorError that lists everything missing and how to get it."""
    directory = bin_dir or default_bin_dir()
    built = (*KUBERNETES, PAUSE, *(BOOTSTRAPPER if bootstrapper else ()))
    programs = {name: _built(name, directory) for name in built}
    missing = [name for name, path in programs.items() if not os.access(path, os.X_OK)]
    packages = []
    wanted = PACKAGED | BOOTSTRAPPER_PACKAGED if bootstrapper else PACKAGED
    for name, package in wanted.items():
        if name in programs:
            continue
        path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if path is None:
            packages.append(package)
        else:
            programs[name] = Path(path)
    cni = next(
        (path for path in CNI_DIRECTORIES if all((path / plug).exists() for plug in CNI_PLUGINS)), None
    )
    if cni is None:
        packages.append("containernetworking-plugins")
    if missing or packages or cni is None:
        raise _missing(directory, missing, packages)
    return Components(programs, cni)


def _built(name: str, directory: Path) -> Path:
    ours = default_bin_dir() / name
    instead = name in BUILT_HERE and ours.exists() and not (directory / name).exists()
    return ours if instead else directory / name


def _missing(directory: Path, programs: Sequence[str], packages: Sequence[str]) -> OperatorError:
    problems, hints = [], []
    if programs:
        problems.append(f"programs not found in {directory}: {', '.join(programs)}")
        few = set(programs) <= set(BUILT_HERE)
        only = f" KUBERNETES='{' '.join(programs)}'" if few else ""
        hints.append(f"run `make kubernetes{only}`, or set --bin-dir")
    if packages:
        names = " ".join(dict.fromkeys(packages))
        problems.append(f"Debian packages missing: {names}")
        hints.append(f"run `apt-get install {names}`")
    return OperatorError("; ".join(problems), hint="; ".join(hints))
