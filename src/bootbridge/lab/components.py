"""The programs a lab is made of, where they are, and what to do about those that are missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bootbridge.errors import OperatorError

# Built by `make kubernetes`, or brought along with --bin-dir.
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
PAUSE = "pause"
# Built by `make kubernetes` too: what blank instances make their cluster with. Its etcd is of the release
# that kubeadm writes manifests for, not the packaged one.
BOOTSTRAPPER = ("kubeadm", "etcd")
# What no release of Kubernetes brings: whoever brings the others has these built here.
BUILT_HERE = (PAUSE, "etcd")
# The Go originals of our own programs, built by `make peers`.
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
    """Every program by name, found."""

    programs: dict[str, Path]
    cni: Path

    def __getitem__(self, name: str) -> str:
        return str(self.programs[name])


# The source that this package runs from, if it does; what is built there lies beside it.
SOURCES = Path(__file__).resolve().parents[3]


def default_bin_dir() -> Path:
    """Where `make kubernetes` puts what it builds."""
    return SOURCES / (os.environ.get("BOOTBRIDGE_KUBERNETES") or "build/kubernetes") / "bin"


def konnectivity_programs() -> Path | None:
    """The Go originals, where `make peers` has put them."""
    path = SOURCES / (os.environ.get("BOOTBRIDGE_PEERS") or "build/peers")
    return path if all((path / name).exists() for name in KONNECTIVITY_PROGRAMS) else None


def find(bin_dir: Path | None = None, *, bootstrapper: bool = False) -> Components:
    """All of them; or one error that names everything missing and how to get it, before anything is done."""
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
    told, hints = [], []
    if programs:
        told.append(f"{', '.join(programs)} (looked in {directory})")
        few = set(programs) <= set(BUILT_HERE)
        only = f" KUBERNETES='{' '.join(programs)}'" if few else ""
        hints.append(f"run `make kubernetes{only}`, or give --bin-dir")
    if packages:
        names = " ".join(dict.fromkeys(packages))
        told.append(f"the Debian packages {names}")
        hints.append(f"apt-get install {names}")
    return OperatorError(f"missing: {'; '.join(told)}", hint="; ".join(hints))
