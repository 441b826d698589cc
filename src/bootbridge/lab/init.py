"""The first process of a lab node: mounts the node's file system, then reaps orphaned processes.

Runs as process 1 of new mount, network, PID, UTS, IPC and cgroup namespaces. The node sees this machine's
programs. What it writes below `/etc`, `/opt`, `/var` and `/usr/local` goes to the node's directory. `/run` is
its own, and so are the directories that would make this machine a Kubernetes node. When this process ends,
the kernel ends everything on the node: processes, mounts and links.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

# Overlays: reads see this machine's files, writes go to the node's directory.
OVERLAID = ("/etc", "/opt", "/var", "/usr/local")
# Bind mounts from the node's directory, with the mode of a new one: nothing of this machine is visible there.
BOUND = {
    # containerd creates overlays here, and the kernel limits how deep overlays stack.
    "/var/lib/containerd": 0o755,
    "/var/log": 0o755,
    # If this machine is or was a node: the lab's kubelet would run its static pods, its CNI configuration
    # could sort first, and kubeadm and the bootstrapper would refuse to start.
    "/etc/bootbridge": 0o755,
    "/etc/cni": 0o755,
    "/etc/kubernetes": 0o755,
    "/var/lib/bootbridge": 0o755,
    "/var/lib/cni": 0o755,
    "/var/lib/etcd": 0o700,
    "/var/lib/kubelet": 0o755,
    "/var/lib/swtpm": 0o700,
}
# A tmpfs.
RUN = "/run"
CGROUPS = Path("/sys/fs/cgroup")
CLONE_NEWCGROUP = 0x02000000
READY = "ready"


def main(argv: list[str]) -> int:
    """NAME DIRECTORY [CGROUP]; prints READY when the node's file system is mounted."""
    name, directory, *group = argv
    try:
        _mount_all(Path(directory))
        if group:
            _enter_cgroup(group[0])
        socket.sethostname(name)
        _run("ip", "link", "set", "lo", "up")
    except OSError as error:
        sys.exit(f"{error.filename or name}: {error.strerror or error}")
    print(READY, flush=True)
    # The reader closes the pipe now: later output must not raise SIGPIPE.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _reap_children()
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


def _enter_cgroup(group: str) -> None:
    """Moves the node into the lab's control group, which becomes the root that the node sees."""
    owned = {hierarchy: hierarchy / group.strip("/") for hierarchy in hierarchies()}
    for own in owned.values():
        (own / "cgroup.procs").write_text("0")
    # The current group of the calling process becomes the root of the new namespace.
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWCGROUP):
        raise OSError(ctypes.get_errno(), "unshare")
    for hierarchy, own in owned.items():
        if hierarchy == CGROUPS:
            # cgroup v2 allows processes only in leaf groups.
            (own / "init").mkdir(exist_ok=True)
            (own / "init" / "cgroup.procs").write_text("0")
        _mount("--bind", str(own), str(hierarchy))


def hierarchies() -> list[Path]:
    """Returns the mounted cgroup hierarchies: one for cgroup v2, one per controller for v1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    found = sorted(CGROUPS.iterdir()) if CGROUPS.exists() else []
    return [path for path in found if (path / "cgroup.procs").exists() and not path.is_symlink()]


def directory_name(path: str) -> str:
    """Returns the name that a path of the node has in the node's directory."""
    return path.strip("/").replace("/", "-")


def _mount(*words: str) -> None:
    _run("mount", *words)


def _run(*argv: str) -> None:
    """Runs a command; if it fails, exits with its error as one line."""
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}: {' '.join(done.stderr.split()) or 'failed'}")


def _reap_children() -> None:
    """Waits for orphaned processes until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
