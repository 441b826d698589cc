"""inotify instances: each user has only so many, and a kubelet that gets none does not start."""

from __future__ import annotations

import os
from pathlib import Path

from bootbridge.errors import OperatorError
from bootbridge.lab.layout import Layout
from bootbridge.lab.processes import all_processes, told

LIMIT = "fs.inotify.max_user_instances"
# What they hold at the least; a kube-controller-manager takes what it gets.
_OF_A_NODE = 7 + 1  # its kubelet, its containerd
_OF_AN_API_SERVER = 6
_INSTANCE = "anon_inode:inotify"


def left() -> int:
    """How many this user can still make; what others hold is counted against them."""
    us = os.geteuid()
    taken = sum(held_by(pid) for pid in all_processes() if _user_of(pid) == us)
    return int(Path("/proc/sys", *LIMIT.split(".")).read_text()) - taken


def held_by(pid: int) -> int:
    """Of a process that has just ended, or is not ours to look at, none are known."""
    try:
        links = [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return 0
    return sum(_target(link) == _INSTANCE for link in links)


def _user_of(pid: int) -> int | None:
    """The effective one: the kernel charges whom a process was when it made the instance.

    Who that was is not to be seen of one that has become another since. Not the owner of its directory in
    /proc, which is root's wherever a process may not be looked into.
    """
    for line in told(pid, "status").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return None


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # just closed
        return ""


def refuse_if_short(layout: Layout) -> None:
    """Said before anything is made: otherwise a node would only never become ready."""
    wanted = _OF_A_NODE * len(layout.all_nodes) + _OF_AN_API_SERVER * max(1, layout.control_planes)
    if (there := left()) < wanted:
        hint = f"end other labs, ask for fewer --nodes, or as root: sysctl {LIMIT}=1024"
        raise OperatorError(f"this lab takes {wanted} inotify instances, and {there} are left", hint=hint)
