"""A process outside a node's PID namespace that holds its mounts, so that it does not end with the node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bootbridge.lab.namespaces import NodeNamespaces
from bootbridge.lab.processes import processes_using
from tests.support.lab import SHORT_PAUSES, until


@contextmanager
def looking_in(namespaces: NodeNamespaces, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs such a process during the block, or until it is killed."""
    argv = ["nsenter", f"--target={namespaces.pid}", "--mount", "sleep", "1000"]
    with subprocess.Popen(argv) as process:
        try:
            until(lambda: process.pid in processes_using(home), "it sees the node's files", 20, SHORT_PAUSES)
            yield process
        finally:
            process.kill()
