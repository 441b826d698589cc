"""This machine's processes as the kernel shows them, and which of them live on a lab's nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

# How mountinfo writes what would end a field.
_ESCAPES = str.maketrans({character: f"\\{ord(character):03o}" for character in " \t\n\\"})


def all_processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def argv_of(pid: int) -> list[str]:
    """The words a process was started with; none once it has ended."""
    return told(pid, "cmdline").split("\0")[:-1]


def told(pid: int, what: str) -> str:
    """A file of a process in /proc; empty when it has just ended, or is not ours to look at."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def start_time(pid: int) -> int:
    """When a process began, in the kernel's ticks; 0 when there is none or it is only waited for."""
    fields = told(pid, "stat").rpartition(")")[2].split()
    return 0 if not fields or fields[0] in ("Z", "X") else int(fields[19])


def inhabitants(home: Path) -> dict[int, int]:
    """Processes that see a node's files, by which they are told from all others: number → start time.

    Some of them are not on the node, but outside: `nsenter` waits there for what it has started inside.
    """
    mounted = f"upperdir={str(home).translate(_ESCAPES)}/"
    found = {pid: start_time(pid) for pid in all_processes() if mounted in told(pid, "mountinfo")}
    return {pid: started for pid, started in found.items() if started}


def await_departure(home: Path | None, known: Mapping[int, int], seconds: float) -> list[str]:
    """Wait until these have ended, and whoever else lives below `home`; who has not in time is returned."""
    seen, deadline = dict(known), time.monotonic() + seconds
    while True:
        # Also those already seen: one that is ending lets go of its mounts before it is gone.
        seen |= inhabitants(home) if home else {}
        left = [pid for pid, started in seen.items() if started and start_time(pid) == started]
        if not left or time.monotonic() > deadline:
            return [f"process {pid} ({' '.join(argv_of(pid))[:60]})" for pid in left]
        time.sleep(0.01)
