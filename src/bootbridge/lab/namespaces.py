"""A lab node's namespaces: made, entered, and gone with everything in them when their first process ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bootbridge.errors import OperatorError
from bootbridge.lab import init
from bootbridge.lab.processes import all_processes, argv_of, processes_using, start_time, wait_until_ended

# What is killed is gone at once; only a machine that hardly gets to it takes longer.
STOP_SECONDS = 60.0
_INIT_ENDING = "/bootbridge/lab/init.py"
# No way of writing these reaches the kernel through every release of mount.
_ENDS_AN_OPTION = ",\\"
# No way leads to any of them from a node's network: who has one in his environment would get no answer.
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@dataclass(frozen=True)
class NodeNamespaces:
    """Known by its first process; the start time tells it from a later process with the same number."""

    name: str
    pid: int
    started: int

    @classmethod
    def create(cls, name: str, directory: Path, group: str = "") -> NodeNamespaces:
        """Make the namespaces; `directory` takes what the node writes, `group` its control groups."""
        check_node_directory(directory)
        directory.mkdir(parents=True, exist_ok=True)
        argv = [
            *("unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child"),
            *(sys.executable, "-I", "-S", init.__file__, name, str(directory)),
            *([group] if group else []),
        ]
        with (directory / "init.log").open("ab") as log:
            begin = log.tell()
            holder = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert holder.stdout is not None
        with holder.stdout as told:
            if told.readline().strip() != init.READY.encode():
                holder.kill()
                holder.wait()
                said = (directory / "init.log").read_bytes()[begin:].decode(errors="replace")
                words = said.strip().splitlines()[-3:]
                raise OperatorError(f"the namespaces of {name} could not be made: {' / '.join(words)}")
        pid = int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0])
        return cls(name, pid, start_time(pid))

    @classmethod
    def find_below(cls, directory: Path) -> list[NodeNamespaces]:
        """Spaces whose node keeps its files below a directory, by what their first processes are called.

        Needs no record, so it also finds what was begun by someone who was killed before writing one.
        """
        return [
            cls(name, pid, start_time(pid)) for pid, name, place in _holders() if place.parent == directory
        ]

    @property
    def alive(self) -> bool:
        return self.started != 0 and start_time(self.pid) == self.started

    def command(self, argv: Sequence[str], *, network_only: bool = False) -> list[str]:
        """How to run `argv` inside; with `network_only` it keeps this machine's files and processes."""
        all_namespaces = (
            ["--net"] if network_only else ["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"]
        )
        directory = [] if network_only else ["--wd=/"]
        proxies = [f"--unset={name}" for name in _PROXIES if name in os.environ]
        without = ["env", *proxies] if proxies else []
        return ["nsenter", f"--target={self.pid}", *all_namespaces, *directory, "--", *without, *argv]

    def run(
        self,
        argv: Sequence[str],
        *,
        network_only: bool = False,
        input: bytes | None = None,
        timeout: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run to its end; a failure is the caller's to judge."""
        return subprocess.run(
            self.command(argv, network_only=network_only),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=timeout,
            env=environment,
            start_new_session=True,
        )

    def run_checked(
        self, *argv: str, network_only: bool = False, input: bytes | None = None, timeout: float = 60.0
    ) -> bytes:
        """Run something that has to work; what it said is in the error."""
        what = f"{self.name}: {' '.join(argv[:4])}"
        try:
            done = self.run(argv, network_only=network_only, input=input, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise OperatorError(f"{what}: not done within {timeout:.0f} s") from None
        if done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
            raise OperatorError(f"{what}: {said[0] if said else 'failed'}")
        return done.stdout

    def spawn(self, name: str, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
        """Start a program that goes on after us; its output goes to `log`."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                self.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
        return process.pid

    def end(self) -> None:
        """Kill the first process, and with it everything inside; returns when all of it is gone.

        Those too who wait outside for what they have started inside: they hold the node's mounts.
        """
        if not self.alive:
            return
        _, home = _held(self.pid) or ("", None)
        known = processes_using(home) if home else {}
        self.kill()
        if left := wait_until_ended(home, {**known, self.pid: self.started}, STOP_SECONDS):
            raise OperatorError(f"of {self.name} do not end: {', '.join(left)}")

    def kill(self) -> None:
        """As `end`, without waiting."""
        if self.alive:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def dump(self) -> str:
        return json.dumps({"name": self.name, "pid": self.pid, "started": self.started})

    @classmethod
    def load(cls, text: str) -> NodeNamespaces:
        document = json.loads(text)
        return cls(str(document["name"]), int(document["pid"]), int(document["started"]))


def check_node_directory(directory: Path) -> None:
    """A node's files cannot lie below what the node itself covers, nor where a mount option would end."""
    hint = "choose another with --dir, for example below your home directory"
    for path in (*init.OVERLAID, init.RUN):
        if directory.is_relative_to(path):
            raise OperatorError(f"a node cannot keep its files below {path}: {directory}", hint=hint)
    for character in _ENDS_AN_OPTION:
        if character in str(directory):
            told = f"a node's files cannot be mounted with {character!r} in their names"
            raise OperatorError(f"{told}: {directory}", hint=hint)


def node_directories() -> set[Path]:
    """Where the nodes that are there keep their files, of whichever lab."""
    return {place for _, _, place in _holders()}


def _holders() -> Iterator[tuple[int, str, Path]]:
    """Every process that holds a namespaces, or is about to: its number, the node's name and directory."""
    for pid in all_processes():
        if held := _held(pid):
            yield pid, *held


def _held(pid: int) -> tuple[str, Path] | None:
    """The name and directory of the node that a process is the first of, or starts."""
    argv = argv_of(pid)
    for place, word in enumerate(argv[:-2]):
        if word.endswith(_INIT_ENDING):
            return argv[place + 1], Path(argv[place + 2])
    return None
