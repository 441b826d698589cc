"""Starts the demo's processes, each with a log file, and stops all of them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bootbridge.demo.interrupts import Interrupts
from bootbridge.demo.network import NetworkContext

STOP_SECONDS = 3.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class DemoProcess:
    """A started process and its log file."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while the process runs."""
        return self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def log_tail(self, lines: int = 8) -> list[str]:
        try:
            return self.log.read_text(errors="replace").splitlines()[-lines:]
        except OSError:
            return []


class DemoProcesses:
    """All processes that were started."""

    def __init__(self, logs: Path, interrupts: Interrupts) -> None:
        self._logs = logs
        self._interrupts = interrupts
        self._started: list[DemoProcess] = []

    def start(self, name: str, context: NetworkContext, argv: Sequence[str]) -> DemoProcess:
        path = self._logs / f"{name}.log"
        with self._interrupts.deferred(), path.open("ab") as log:
            process = subprocess.Popen(
                context.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C must reach only the demo, which then stops the processes in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
            started = DemoProcess(name, process, path)
            self._started.append(started)
        return started

    @property
    def count(self) -> int:
        return len(self._started)

    def named(self, name: str) -> DemoProcess | None:
        """Returns the last process started under that name."""
        return next((process for process in reversed(self._started) if process.name == name), None)

    def running(self) -> list[DemoProcess]:
        return [process for process in self._started if process.exit_code is None]

    def stop(self, waiting: Callable[[str], None]) -> None:
        """Sends SIGTERM to all, waits up to STOP_SECONDS, then sends SIGKILL."""
        for process in self.running():
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while self.running() and time.monotonic() < deadline:
            waiting(f"{', '.join(process.name for process in self.running())} to stop")
            time.sleep(0.01)
        for process in self.running():
            process.kill()

    def left(self) -> list[str]:
        """Returns the processes whose process group still has members."""
        return [
            f"{process.name} (pid {process.pid})" for process in self._started if _group_exists(process.pid)
        ]


def _die_with_parent() -> None:
    # If the demo is killed with SIGKILL, the kernel kills its processes.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # PermissionError: the id was reused by another user
        return False
    return True
