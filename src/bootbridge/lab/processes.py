"""Processes of this machine as /proc shows them, and which of them use a lab node's files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

# mountinfo writes these characters as octal escapes.
_ESCAPES = str.maketrans({character: f"\\{ord(character):03o}" for character in " \t\n\\"})


def all_processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def argv_of(pid: int) -> list[str]:
    """Returns the command line of a process; empty once it has ended."""
    return read_proc(pid, "cmdline").split("\0")[:-1]


def read_proc(pid: int, name: str) -> str:
    """Returns the text of /proc/PID/NAME; empty if the process has ended or may not be read."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def start_time(pid: int) -> int:
    """Returns when a process started, in clock ticks; 0 if there is none, or it is a zombie."""
    fields = read_proc(pid, "stat").rpartition(")")[2].split()
    return 0 if not fields or fields[0] in ("Z", "X") else int(fields[19])


def processes_using(directory: Path) -> dict[int, int]:
    """Returns the processes whose mounts lie below a node's directory: process id → start time.

    They include processes outside the node's PID namespace, such as an `nsenter` that waits for its child.
    """
    mounted = f"upperdir={str(directory).translate(_ESCAPES)}/"
    found = {pid: start_time(pid) for pid in all_processes() if mounted in read_proc(pid, "mountinfo")}
    return {pid: started for pid, started in found.items() if started}


def wait_until_ended(directory: Path | None, known: Mapping[int, int], seconds: float) -> list[str]:
    """Waits until the `known` processes and all that use `directory` have ended; returns those that have not.

    A process that was seen once is waited for to its end, because an ending process drops its mounts first.
    """
    seen, deadline = dict(known), time.monotonic() + seconds
    while True:
        seen |= processes_using(directory) if directory else {}
        left = [pid for pid, started in seen.items() if started and start_time(pid) == started]
        if not left or time.monotonic() > deadline:
            return [f"process {pid} ({' '.join(argv_of(pid))[:60]})" for pid in left]
        time.sleep(0.01)
