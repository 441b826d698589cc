"""The control groups of a lab: one below the root of each hierarchy, named after the lab, gone with it."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from bootbridge.lab.init import CGROUPS, hierarchies

PATIENCE_SECONDS = 60.0


class Cgroups:
    """Groups of one lab; its directory decides the name, so that two labs never share any."""

    def __init__(self, lab: Path) -> None:
        self.name = "bootbridge-lab-" + hashlib.sha256(str(lab.resolve()).encode()).hexdigest()[:8]

    def make(self, node: str) -> str:
        """The group of a node: where it is in each hierarchy."""
        for hierarchy in hierarchies():
            group = hierarchy / self.name / node
            group.mkdir(parents=True, exist_ok=True)
            if hierarchy.name == "cpuset":
                _inherit_cpuset(group)
            if hierarchy == CGROUPS:
                _pass_on_controllers(group)
        return f"/{self.name}/{node}"

    @property
    def any_there(self) -> bool:
        return any((hierarchy / self.name).exists() for hierarchy in hierarchies())

    def remove(self) -> list[str]:
        """Remove them from the leaves up; what is still in use after a while is returned."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := [told for hierarchy in hierarchies() for told in _remove(hierarchy / self.name)]:
            # A process that was just killed is a member until the kernel has let go of it.
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
    """An empty cpuset takes no process: copy the parent's, from the top."""
    for folder in (group.parent, group):
        for name in ("cpuset.cpus", "cpuset.mems"):
            try:
                if not (folder / name).read_text().strip():
                    (folder / name).write_text((folder.parent / name).read_text())
            except OSError:
                continue


def _pass_on_controllers(group: Path) -> None:
    """In the one hierarchy of the newer kind a group has only those controllers that its parent gives it."""
    for folder in (group.parent.parent, group.parent):
        for name in (folder / "cgroup.controllers").read_text().split():
            try:
                (folder / "cgroup.subtree_control").write_text(f"+{name}")
            except OSError:
                continue
