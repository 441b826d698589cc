"""Labs that a killed test has left: nobody else takes them down, and a machine carries only so many."""

from __future__ import annotations

from pathlib import Path

from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import Layout
from bootbridge.lab.namespaces import homes
from bootbridge.lab.processes import start_time

# pytest gives each run a folder in one of these, and writes into it which process it is.
FOLDERS, LOCK = "pytest-of-", ".lock"


def abandoned_labs() -> list[Lab]:
    """Labs with nodes that run in the folder of a test run that does not."""
    labs = {home.parent.parent for home in homes() if home.parent.name == "nodes"}
    return [Lab(directory, Layout()) for directory in sorted(labs) if _is_abandoned(directory)]


def _is_abandoned(directory: Path) -> bool:
    runs = [folder for folder in directory.parents if folder.parent.name.startswith(FOLDERS)]
    return bool(runs) and not _goes_on(runs[0])


def _goes_on(run: Path) -> bool:
    """Should its number be another's by now, the lab stays: better one too many than one too few."""
    try:
        return start_time(int((run / LOCK).read_text())) != 0
    except (OSError, ValueError):
        return False
