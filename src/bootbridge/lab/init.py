"""The first process of a lab node: gives it a file system of its own, then buries the dead.

Runs as process 1 of fresh mount, network, process, host name and cgroup namespaces. The
node sees this machine's programs, but what it writes below `/etc`, `/opt`, `/var` and
`/usr/local` goes to the node's own directory, and `/run` and `/tmp` are its own altogether.
When this process ends, so does everything on the node: processes, mounts and links.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

# Seen as on this machine, written to the node's own directory.
OVERLAID = ("/etc", "/opt", "/var", "/usr/local")
# On the node's own directory without an overlay below: containerd makes overlays itself, and
# the kernel does not stack them any further.
BOUND = ("/var/lib/containerd", "/var/lib/kubelet", "/var/log")
READY = "ready"


def main(argv: list[str]) -> int:
    name, directory = argv
    _mount_all(Path(directory))
    socket.sethostname(name)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    print(READY, flush=True)
    # Nobody reads on: whatever is printed later must not end us.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _bury()
    return 0


def _mount_all(directory: Path) -> None:
    _mount("--make-rprivate", "/")
    for path in OVERLAID:
        upper, work = (directory / own_name(path) / part for part in ("upper", "work"))
        upper.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        _mount("-t", "overlay", "overlay", "-o", f"lowerdir={path},upperdir={upper},workdir={work}", path)
    for path in BOUND:
        own = directory / own_name(path)
        own.mkdir(parents=True, exist_ok=True)
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount("--bind", str(own), path)
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    _mount("-t", "proc", "proc", "/proc")


def own_name(path: str) -> str:
    """Where in the node's directory a path of the node is kept."""
    return path.strip("/").replace("/", "-")


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


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
