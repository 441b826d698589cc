"""The control groups of a lab: one below the root of each hierarchy, named after the lab, gone with it."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PATIENCE_SECONDS = 5.0


class Cgroups:
    """Groups of one lab; its directory decides the name, so that two labs never share any."""

    def __init__(self, lab: Path) -> None:
        self.name = "bootbridge-lab-" + hashlib.sha256(str(lab.resolve()).encode()).hexdigest()[:8]

    def make(self, node: str) -> str:
        """The group of a node, as kubelet names it."""
        for hierarchy in _hierarchies():
            group = hierarchy / self.name / node
            group.mkdir(parents=True, exist_ok=True)
            if hierarchy.name == "cpuset":
                _inherit_cpuset(group)
        return f"/{self.name}/{node}"

    def remove(self) -> list[str]:
        """Remove them from the leaves up; what is still in use after a while is returned."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := [told for hierarchy in _hierarchies() for told in _remove(hierarchy / self.name)]:
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


def _hierarchies() -> list[Path]:
    """Every mounted hierarchy, of the older kind or the newer."""
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [
        path for path in sorted(ROOT.iterdir()) if (path / "cgroup.procs").exists() and not path.is_symlink()
    ]


def _inherit_cpuset(group: Path) -> None:
    """An empty cpuset takes no process: copy the parent's, from the top."""
    for folder in (group.parent, group):
        for name in ("cpuset.cpus", "cpuset.mems"):
            try:
                if not (folder / name).read_text().strip():
                    (folder / name).write_text((folder.parent / name).read_text())
            except OSError:
                continue
