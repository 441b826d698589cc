"""Who waits for a lock: the one moment at which a test can be sure that another has come as far as that."""

from __future__ import annotations

from pathlib import Path


def waits_for_a_lock(pid: int) -> bool:
    """Whether the kernel lists a process, or a thread of it, below a lock that another process holds."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1] == "->" and words[5] == str(pid) for words in lines)
