"""Finds labs of killed test runs: they keep running, and a machine has room for only a few."""

from __future__ import annotations

from pathlib import Path

from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import Layout
from bootbridge.lab.namespaces import node_directories
from bootbridge.lab.processes import start_time

# pytest gives each run a directory below one of these, and writes its process id into the lock file.
FOLDERS, LOCK = "pytest-of-", ".lock"


def stale_labs() -> list[Lab]:
    """Returns the running labs in directories of test runs that have ended."""
    labs = {node.parent.parent for node in node_directories() if node.parent.name == "nodes"}
    return [Lab(directory, Layout()) for directory in sorted(labs) if _is_stale(directory)]


def _is_stale(directory: Path) -> bool:
    runs = [folder for folder in directory.parents if folder.parent.name.startswith(FOLDERS)]
    return bool(runs) and not _is_running(runs[0])


def _is_running(run: Path) -> bool:
    """Returns whether the process in the lock file runs; a reused process id keeps the lab, which is safe."""
    try:
        return start_time(int((run / LOCK).read_text())) != 0
    except (OSError, ValueError):
        return False
