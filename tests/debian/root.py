"""A Debian root directory made by debootstrap, and commands that run in a copy of it.

Everything is mounted in a mount namespace of its own, and runs in a PID namespace of its own: when its first
process ends, all others are killed, and no mount is left.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# With what these depend on; debootstrap adds the packages that Debian calls required, and apt.
PACKAGES = ("python3", "python3-venv", "make")
SCRIPTS = Path("/usr/share/debootstrap/scripts")
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
# How this machine reaches Debian's mirror and the Python registry, in files and variables.
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
NETWORK_FILES = (Path("/etc/resolv.conf"), Path("/etc/hosts"), Path("/etc/pip.conf"), CERTIFICATES)
# Not a directory with packages: the root does not have it.
VARIABLES = re.compile(r"PIP_(?!FIND_LINKS).*|(https?|no)_proxy|(HTTPS?|NO)_PROXY|SSL_CERT_FILE|SSL_CERT_DIR")
APT_OPTIONS = re.compile(r"Acquire::(https?|Check-Valid-Until)\b.*")
# The root is a mount point, as on a machine: unshare in it changes the propagation of its mounts.
ENTER = """
root=$1 && shift
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
exec /usr/sbin/chroot . "$@"
"""


@dataclass(frozen=True)
class Machine:
    """What a root needs to know of this machine to reach the network."""

    files: tuple[Path, ...]
    apt_options: str
    variables: Mapping[str, str]
    mirror: str  # empty: that of debootstrap

    @staticmethod
    def read() -> Machine:
        options = _output("apt-config", "dump").splitlines()
        target = ("--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
        mirrors = _output("apt-get", "indextargets", *target).split()
        return Machine(
            files=tuple(path for path in NETWORK_FILES if path.exists()),
            apt_options="".join(f"{line}\n" for line in options if APT_OPTIONS.match(line)),
            variables={name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)},
            mirror=mirrors[0] if mirrors else "",
        )


def base(suite: str, folder: Path, machine: Machine) -> Path:
    """Returns the root of a suite; makes it if these packages have none yet."""
    digest = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]
    target = folder / f"{suite}-{digest}"
    if not target.exists():
        unfinished = Path(f"{target}.unfinished")
        _remove(unfinished)
        folder.mkdir(parents=True, exist_ok=True)
        script = SCRIPTS / suite
        words = [suite, unfinished, machine.mirror, "" if script.exists() else SCRIPTS / "sid"]
        options = ("--variant=minbase", f"--include={','.join(PACKAGES)}")
        run(["debootstrap", *options, *(str(word) for word in words if word)])
        shutil.rmtree(unfinished / "var/cache/apt/archives", ignore_errors=True)
        unfinished.rename(target)
    return target


@contextmanager
def copy(root: Path, machine: Machine) -> Iterator[Path]:
    """A copy that may be changed; removed at the end."""
    target = Path(tempfile.mkdtemp(prefix="run-", dir=root.parent))
    try:
        run(["cp", "--archive", "--reflink=auto", f"{root}/.", str(target)])
        (target / "etc/apt/apt.conf.d/90machine").write_text(machine.apt_options)
        for path in machine.files:
            inside = target / path.relative_to("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, inside)
        yield target
    finally:
        _remove(target)


def enter(root: Path, machine: Machine, *command: str) -> None:
    """Runs a command in a root, with the environment of a new login."""
    fixed = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    run(["sh", "-ec", ENTER, "sh", str(root), *command], {**machine.variables, **fixed})


def run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    """Runs a command in namespaces of its own, which end with this call, whatever ends it."""
    process = subprocess.Popen(
        [*NAMESPACES, *command], env=variables, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, [*command[:1], "…"])
    finally:
        process.kill()  # and its child: --kill-child
        process.wait()


def _remove(path: Path) -> None:
    # Its mounts were in another namespace; a mount in this one must not be emptied.
    if any(line.split()[1].startswith(f"{path}/") for line in Path("/proc/mounts").read_text().splitlines()):
        sys.exit(f"{path}: mounts below it (umount them, then remove it)")
    shutil.rmtree(path, ignore_errors=True)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
