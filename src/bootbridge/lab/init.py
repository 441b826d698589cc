"""The first process of a lab node: gives it a file system of its own, then buries the dead.

Runs as process 1 of fresh mount, network, process, host name and cgroup namespaces. The
node sees this machine's programs, but what it writes below `/etc`, `/opt`, `/var` and
`/usr/local` goes to the node's own directory, what makes a machine a node of some cluster
is not seen at all, and `/run` is its own altogether.
When this process ends, so does everything on the node: processes, mounts and links.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

# Seen as on this machine, written to the node's own directory.
OVERLAID = ("/etc", "/opt", "/var", "/usr/local")
# On the node's own directory, and nothing of this machine's to be seen there: with the mode of a new one.
BOUND = {
    # containerd makes overlays itself, and the kernel does not stack them any further.
    "/var/lib/containerd": 0o755,
    "/var/log": 0o755,
    # This machine may be a node itself, or have been one: a lab's kubelet would run its static pods, a
    # network configuration that sorts first would win, kubeadm and our bootstrapper would refuse to begin.
    "/etc/bootbridge": 0o755,
    "/etc/cni": 0o755,
    "/etc/kubernetes": 0o755,
    "/var/lib/bootbridge": 0o755,
    "/var/lib/cni": 0o755,
    "/var/lib/etcd": 0o700,
    "/var/lib/kubelet": 0o755,
    "/var/lib/swtpm": 0o700,
}
# The node's own altogether.
RUN = "/run"
CGROUPS = Path("/sys/fs/cgroup")
CLONE_NEWCGROUP = 0x02000000
READY = "ready"


def main(argv: list[str]) -> int:
    name, directory, *group = argv
    try:
        _mount_all(Path(directory))
        if group:
            _keep_to(group[0])
        socket.sethostname(name)
        _must("ip", "link", "set", "lo", "up")
    except OSError as error:
        sys.exit(f"{error.filename or name}: {error.strerror or error}")
    print(READY, flush=True)
    # Nobody reads on: whatever is printed later must not end us.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _bury()
    return 0


def _mount_all(directory: Path) -> None:
    _mount("--make-rprivate", "/")
    for path in OVERLAID:
        upper, work = (directory / directory_name(path) / part for part in ("upper", "work"))
        upper.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        _mount("-t", "overlay", "overlay", "-o", f"lowerdir={path},upperdir={upper},workdir={work}", path)
    for path, mode in BOUND.items():
        own = directory / directory_name(path)
        own.mkdir(mode, parents=True, exist_ok=True)
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount("--bind", str(own), path)
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", RUN)
    _mount("-t", "proc", "proc", "/proc")


def _keep_to(group: str) -> None:
    """What the node takes for the roots of the control groups is a group of the lab's in each hierarchy."""
    owned = {hierarchy: hierarchy / group.strip("/") for hierarchy in hierarchies()}
    for own in owned.values():
        (own / "cgroup.procs").write_text("0")
    # The group that a process is in when it does this is the root for everyone inside.
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWCGROUP):
        raise OSError(ctypes.get_errno(), "unshare")
    for hierarchy, own in owned.items():
        if hierarchy == CGROUPS:
            # The newer kind wants processes in leaves only.
            (own / "init").mkdir(exist_ok=True)
            (own / "init" / "cgroup.procs").write_text("0")
        _mount("--bind", str(own), str(hierarchy))


def hierarchies() -> list[Path]:
    """Every mounted hierarchy of control groups, of the older kind or the newer."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    found = sorted(CGROUPS.iterdir()) if CGROUPS.exists() else []
    return [path for path in found if (path / "cgroup.procs").exists() and not path.is_symlink()]


def directory_name(path: str) -> str:
    """Where in the node's directory a path of the node is kept."""
    return path.strip("/").replace("/", "-")


def _mount(*words: str) -> None:
    _must("mount", *words)


def _must(*argv: str) -> None:
    """Run something that has to work; else its own reason is the last that we say, in one line."""
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}: {' '.join(done.stderr.split()) or 'failed'}")


def _bury() -> None:
    """Wait for children that others left behind, for ever."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
