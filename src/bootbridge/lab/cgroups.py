"""The control groups of a lab: one group per hierarchy, named after the lab and removed with it."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from bootbridge.lab.init import CGROUPS, hierarchies

REMOVE_SECONDS = 60.0


class Cgroups:
    """Creates and removes the groups of one lab; the name is a hash of the lab's directory."""

    def __init__(self, lab: Path) -> None:
        self.name = "bootbridge-lab-" + hashlib.sha256(str(lab.resolve()).encode()).hexdigest()[:8]

    def make(self, node: str) -> str:
        """Creates a node's group in every hierarchy and returns its path there."""
        for hierarchy in hierarchies():
            group = hierarchy / self.name / node
            group.mkdir(parents=True, exist_ok=True)
            if hierarchy.name == "cpuset":
                _inherit_cpuset(group)
            if hierarchy == CGROUPS:
                _enable_controllers(group)
        return f"/{self.name}/{node}"

    @property
    def exist(self) -> bool:
        return any((hierarchy / self.name).exists() for hierarchy in hierarchies())

    def remove(self) -> list[str]:
        """Removes the groups, leaves first; returns those still in use after REMOVE_SECONDS."""
        deadline = time.monotonic() + REMOVE_SECONDS
        while left := [line for hierarchy in hierarchies() for line in _remove(hierarchy / self.name)]:
            # A killed process remains a member until the kernel has released it.
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return left


def _remove(top: Path) -> list[str]:
    left = []
    for folder, _, _ in os.walk(top, topdown=False):
        try:
            os.rmdir(folder)
        except OSError as error:
            left.append(f"{folder}: {error.strerror}")
    return left


def _inherit_cpuset(group: Path) -> None:
    """Copies the parent's cpuset, top down: a group with an empty cpuset accepts no process."""
    for folder in (group.parent, group):
        for name in ("cpuset.cpus", "cpuset.mems"):
            try:
                if not (folder / name).read_text().strip():
                    (folder / name).write_text((folder.parent / name).read_text())
            except OSError:
                continue


def _enable_controllers(group: Path) -> None:
    """Enables all controllers for the group: in cgroup v2 a group has only those that its parent enables."""
    for folder in (group.parent.parent, group.parent):
        for name in (folder / "cgroup.controllers").read_text().split():
            try:
                (folder / "cgroup.subtree_control").write_text(f"+{name}")
            except OSError:
                continue
