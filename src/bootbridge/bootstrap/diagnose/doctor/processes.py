"""Processes that run on this node, found by their command lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NodeProcess:
    pid: int
    words: tuple[str, ...]

    def value(self, flag: str) -> str | None:
        """Returns the value of `--flag=value` or `--flag value`; the last one wins."""
        found = None
        for word, following in zip(self.words, (*self.words[1:], ""), strict=True):
            name, given, value = word.partition("=")
            if name == f"--{flag}":
                found = value if given else following
        return found

    def is_called(self, name: str) -> bool:
        """Whether it is this program: by its file, as an interpreter's script, or as a sub-command."""
        return any(os.path.basename(word) == name for word in self.words[:3])

    @property
    def age(self) -> float | None:
        """Seconds since it started; None if it has exited."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            up = float(Path("/proc/uptime").read_text().split()[0])
        except OSError:
            return None
        return None if fields[0] == "Z" else up - int(fields[19]) / os.sysconf("SC_CLK_TCK")

    def sees(self, path: str, here: Path) -> bool:
        """Whether its `path` is our `here`: a container has other paths for the same file."""
        try:
            return os.path.samestat(os.stat(f"/proc/{self.pid}/root{path}"), here.stat())
        except OSError:
            return False


def running() -> Iterator[NodeProcess]:
    own = os.getpid()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != own:
            words = _words(int(entry))
            if words:
                yield NodeProcess(int(entry), words)


def named(name: str) -> list[NodeProcess]:
    return sorted((each for each in running() if each.is_called(name)), key=lambda each: each.pid)


def _words(pid: int) -> tuple[str, ...]:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(word) for word in line.split(b"\0")[:-1])
