"""The number of inotify instances that this user may still create: a kubelet without one does not start."""

from __future__ import annotations

import os
from pathlib import Path

from bootbridge.errors import OperatorError
from bootbridge.lab.layout import Layout
from bootbridge.lab.processes import all_processes, read_proc

LIMIT = "fs.inotify.max_user_instances"
# The minimum that each holds; a kube-controller-manager runs with however many it gets.
_PER_NODE = 7 + 1  # kubelet, containerd
_PER_API_SERVER = 6
_INSTANCE = "anon_inode:inotify"


def available() -> int:
    """Returns how many instances this user may still create."""
    user = os.geteuid()
    used = sum(held_by(pid) for pid in all_processes() if _user_of(pid) == user)
    return int(Path("/proc/sys", *LIMIT.split(".")).read_text()) - used


def held_by(pid: int) -> int:
    """Returns how many instances a process holds; 0 if it has ended or may not be inspected."""
    try:
        links = [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return 0
    return sum(_target(link) == _INSTANCE for link in links)


def _user_of(pid: int) -> int | None:
    """Returns the effective user id: the kernel charges the user that the process had on creation.

    Not the owner of /proc/PID, which is root for every process that may not be inspected.
    """
    for line in read_proc(pid, "status").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return None


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed in the meantime
        return ""


def check_available(layout: Layout) -> None:
    """Raises OperatorError if a lab needs more instances than are available.

    Without this check a node would never become ready, and no log would say why.
    """
    needed = _PER_NODE * len(layout.all_nodes) + _PER_API_SERVER * max(1, layout.control_planes)
    if (there := available()) < needed:
        hint = f"stop other labs, use fewer --nodes, or run as root: sysctl {LIMIT}=1024"
        problem = f"not enough inotify instances: {needed} needed, {there} available"
        raise OperatorError(problem, subject=LIMIT, hint=hint)
