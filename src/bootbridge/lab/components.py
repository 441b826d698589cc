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
CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))
CNI_PLUGINS = ("bridge", "host-local", "loopback")


@dataclass(frozen=True)
class Components:
    """Every program by name, found."""

    programs: dict[str, Path]
    cni: Path

    def __getitem__(self, name: str) -> str:
        return str(self.programs[name])


def default_bin_dir() -> Path:
    """Where `make kubernetes` puts what it builds: beside the source this package runs from."""
    given = os.environ.get("BOOTBRIDGE_KUBERNETES")
    root = Path(__file__).resolve().parents[3]
    return (Path(given) if given else root / "build" / "kubernetes") / "bin"


def find(bin_dir: Path | None = None) -> Components:
    """All of them; or one error that names everything missing and how to get it, before anything is done."""
    directory = bin_dir or default_bin_dir()
    programs = {name: directory / name for name in (*KUBERNETES, PAUSE)}
    missing = [name for name, path in programs.items() if not os.access(path, os.X_OK)]
    packages = []
    for name, package in PACKAGED.items():
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


def _missing(directory: Path, programs: Sequence[str], packages: Sequence[str]) -> OperatorError:
    told, hints = [], []
    if programs:
        told.append(f"{', '.join(programs)} (looked in {directory})")
        hints.append("run `make kubernetes`, or give --bin-dir")
    if packages:
        names = " ".join(dict.fromkeys(packages))
        told.append(f"the Debian packages {names}")
        hints.append(f"apt-get install {names}")
    return OperatorError(f"missing: {'; '.join(told)}", hint="; ".join(hints))
