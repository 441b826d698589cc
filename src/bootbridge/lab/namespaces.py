"""The namespaces of a lab node: created, entered, and ended with everything that runs in them."""

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

# A killed process ends at once, except on an overloaded machine.
STOP_SECONDS = 60.0
_INIT_ENDING = "/bootbridge/lab/init.py"
# Not every release of mount passes an escaped comma or backslash to the kernel.
_NOT_IN_MOUNT_OPTIONS = ",\\"
# A proxy of this machine is unreachable from a node's network.
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@dataclass(frozen=True)
class NodeNamespaces:
    """The namespaces of one node, identified by their first process.

    The start time distinguishes that process from a later one with the same process id.
    """

    name: str
    pid: int
    started: int

    @classmethod
    def create(cls, name: str, directory: Path, group: str = "") -> NodeNamespaces:
        """Creates the namespaces; the node writes to `directory` and is limited to control group `group`."""
        check_node_directory(directory)
        directory.mkdir(parents=True, exist_ok=True)
        argv = [
            *("unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child"),
            *(sys.executable, "-I", "-S", init.__file__, name, str(directory)),
            *([group] if group else []),
        ]
        with (directory / "init.log").open("ab") as log:
            begin = log.tell()
            unshare = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert unshare.stdout is not None
        with unshare.stdout as output:
            if output.readline().strip() != init.READY.encode():
                unshare.kill()
                unshare.wait()
                text = (directory / "init.log").read_bytes()[begin:].decode(errors="replace")
                reason = " / ".join(text.strip().splitlines()[-3:])
                raise OperatorError(f"cannot create namespaces: {reason}", subject=f"node {name}")
        pid = int(Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()[0])
        return cls(name, pid, start_time(pid))

    @classmethod
    def find_below(cls, directory: Path) -> list[NodeNamespaces]:
        """Returns the namespaces of nodes whose files are below `directory`, found by their first process.

        Needs no record, so it also finds nodes whose creator was killed before it wrote one.
        """
        return [
            cls(name, pid, start_time(pid))
            for pid, name, path in _init_processes()
            if path.parent == directory
        ]

    @property
    def alive(self) -> bool:
        return self.started != 0 and start_time(self.pid) == self.started

    def command(self, argv: Sequence[str], *, network_only: bool = False) -> list[str]:
        """Returns the command that runs `argv` inside; with `network_only`, with this machine's files."""
        kinds = ["--net"] if network_only else ["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"]
        directory = [] if network_only else ["--wd=/"]
        proxies = [f"--unset={name}" for name in _PROXIES if name in os.environ]
        env = ["env", *proxies] if proxies else []
        return ["nsenter", f"--target={self.pid}", *kinds, *directory, "--", *env, *argv]

    def run(
        self,
        argv: Sequence[str],
        *,
        network_only: bool = False,
        input: bytes | None = None,
        timeout: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs a command to its end; the caller checks the exit code."""
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
        """Runs a command and returns its stdout; raises OperatorError with its first line if it fails."""
        subject = f"{self.name}: {' '.join(argv[:4])}"
        try:
            done = self.run(argv, network_only=network_only, input=input, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise OperatorError(f"timed out after {timeout:g}s", subject=subject) from None
        if done.returncode:
            lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
            raise OperatorError(lines[0] if lines else f"exit code {done.returncode}", subject=subject)
        return done.stdout

    def spawn(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
        """Starts a program that keeps running after this process; appends its output to `log`."""
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
        """Kills the first process, and with it all processes inside; returns when all have ended.

        It also waits for processes outside that hold the node's mounts, such as `nsenter`.
        """
        if not self.alive:
            return
        _, directory = _node_of(self.pid) or ("", None)
        known = processes_using(directory) if directory else {}
        self.kill()
        if left := wait_until_ended(directory, {**known, self.pid: self.started}, STOP_SECONDS):
            problem = f"processes still running after {STOP_SECONDS:g}s: {', '.join(left)}"
            raise OperatorError(problem, subject=f"node {self.name}")

    def kill(self) -> None:
        """Kills the first process without waiting."""
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
    """Raises OperatorError if nodes cannot keep their files in this directory."""
    hint = "choose another directory with --dir, for example below your home directory"
    for path in (*init.OVERLAID, init.RUN):
        if directory.is_relative_to(path):
            problem = f"invalid lab directory: nodes mount their own {path}"
            raise OperatorError(problem, subject=str(directory), hint=hint)
    for character in _NOT_IN_MOUNT_OPTIONS:
        if character in str(directory):
            problem = f"invalid lab directory: {character!r} is not allowed in mount options"
            raise OperatorError(problem, subject=str(directory), hint=hint)


def node_directories() -> set[Path]:
    """Returns the directories of all running nodes, of any lab."""
    return {path for _, _, path in _init_processes()}


def _init_processes() -> Iterator[tuple[int, str, Path]]:
    """Yields process id, node name and directory of every first process of a node, and its `unshare`."""
    for pid in all_processes():
        if node := _node_of(pid):
            yield pid, *node


def _node_of(pid: int) -> tuple[str, Path] | None:
    """Returns name and directory of the node, from the command line of its first process."""
    argv = argv_of(pid)
    for index, word in enumerate(argv[:-2]):
        if word.endswith(_INIT_ENDING):
            return argv[index + 1], Path(argv[index + 2])
    return None
