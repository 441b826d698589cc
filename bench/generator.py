"""Drives the Go load generator: its backend, and one scenario at a time."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairs import ROOT, BenchError, Process, Processes

# On top of the measurement: dials, warm-up, a stalled pair's limits, settling.
GRACE_SECONDS = 60


def peers_directory() -> Path:
    return ROOT / os.environ.get("BOOTBRIDGE_PEERS", "build/peers")


def build_peers(*names: str) -> None:
    """Does nothing when they are current; its exit code 3 says that Go is missing."""
    result = subprocess.run([str(ROOT / "peers" / "build"), *names])
    if result.returncode:
        sys.exit(result.returncode)


@dataclass(frozen=True)
class Entry:
    """Where the load enters: a server's socket, or directly at the backend."""

    frontend: str
    uds: str = ""

    def flags(self) -> list[str]:
        return [f"--frontend={self.frontend}", f"--uds={self.uds}"]


class Generator:
    """The load binary with a running backend."""

    def __init__(self, children: Processes) -> None:
        self._children = children
        self._binary = str(peers_directory() / "load")
        backend = children.start("backend", [self._binary, "backend"], stdout=subprocess.PIPE)
        self.ports: dict[str, str] = next_line(backend)

    def run(self, scenario: str, entry: Entry, target: str, *flags: str) -> dict[str, Any]:
        """One scenario to its end, and until the backend has no connection left."""
        return self._run(scenario, [*self._common(entry, target), *flags])

    def run_beside(self, scenario: str, entry: Entry, *flags: str) -> dict[str, Any]:
        """One echo scenario while others hold connections: without a control port it waits for none."""
        return self._run(scenario, [*entry.flags(), f"--target={self.ports['echo']}", *flags])

    def _run(self, scenario: str, flags: list[str]) -> dict[str, Any]:
        """BenchError when the load could not be carried."""
        argv = [self._binary, scenario, *flags]
        try:
            result = subprocess.run(
                argv, capture_output=True, text=True, timeout=GRACE_SECONDS, process_group=0
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"load {scenario}: no result after {GRACE_SECONDS} s") from None
        if result.returncode:
            raise BenchError(result.stderr.strip()[-300:] or f"load {scenario}: exit {result.returncode}")
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    def hold(self, entry: Entry, count: int) -> tuple[Process, dict[str, Any]]:
        """Opens tunnels that stay until `release`."""
        argv = [self._binary, "idle", *self._common(entry, "echo"), f"--conns={count}"]
        return self._start_holding(f"idle {count}", argv)

    def agents(self, server: str, credentials: dict[str, str], count: int) -> tuple[Process, dict[str, Any]]:
        """Connects agents that stay until `release`."""
        flags = [f"--{name}={value}" for name, value in credentials.items()]
        argv = [self._binary, "agents", f"--server={server}", f"--count={count}", *flags]
        return self._start_holding(f"agents {count}", argv)

    def fleet(self, server: str, credentials: dict[str, str], count: int) -> tuple[Process, dict[str, Any]]:
        """Connects agents that reconnect when they lose the server; see `next_line`."""
        flags = [f"--{name}={value}" for name, value in credentials.items()]
        argv = [self._binary, "fleet", f"--server={server}", f"--count={count}", *flags]
        return self._start_holding(f"fleet {count}", argv)

    def caller(self, entry: Entry) -> Process:
        """Calls the echo port, one call at a time, until `finish`."""
        argv = [self._binary, "caller", *entry.flags(), f"--target={self.ports['echo']}"]
        return self._start_holding("caller", argv)[0]

    def finish(self, caller: Process) -> dict[str, Any]:
        """Ends a caller and returns its figures."""
        assert caller.popen.stdin is not None
        caller.popen.stdin.close()
        try:
            return next_line(caller)
        finally:
            self._children.kill(caller)

    def release(self, process: Process) -> None:
        """The end of its stdin asks it to close what it holds."""
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        try:
            process.popen.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{process.title}: does not end") from None
        finally:
            self._children.kill(process)

    def _common(self, entry: Entry, target: str) -> list[str]:
        return [*entry.flags(), f"--target={self.ports[target]}", f"--control={self.ports['control']}"]

    def _start_holding(self, title: str, argv: list[str]) -> tuple[Process, dict[str, Any]]:
        process = self._children.start(title, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            return process, next_line(process)
        except BenchError:
            self._children.kill(process)
            raise


def next_line(process: Process) -> dict[str, Any]:
    """Waits for the next line of JSON that a process prints; its end without one is an error."""
    assert process.popen.stdout is not None
    line = process.popen.stdout.readline()
    if not line:
        process.popen.wait()
        process.check_alive()
    answer: dict[str, Any] = json.loads(line)
    return answer
