"""The programs of the demo: started in their place, each with a log, all stopped in the end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bootbridge.demo.interrupts import Interrupts
from bootbridge.demo.network import Place

STOP_SECONDS = 3.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Program:
    """A running process and the file that holds what it says."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def last_words(self, lines: int = 8) -> list[str]:
        try:
            return self.log.read_text(errors="replace").splitlines()[-lines:]
        except OSError:
            return []


class Programs:
    """All processes that were started."""

    def __init__(self, logs: Path, interrupts: Interrupts) -> None:
        self._logs = logs
        self._interrupts = interrupts
        self._started: list[Program] = []

    def start(self, name: str, place: Place, argv: Sequence[str]) -> Program:
        path = self._logs / f"{name}.log"
        with self._interrupts.held(), path.open("ab") as log:
            process = subprocess.Popen(
                place.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for us: we stop them in good order.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
            program = Program(name, process, path)
            self._started.append(program)
        return program

    @property
    def started(self) -> int:
        return len(self._started)

    def named(self, name: str) -> Program | None:
        """The latest of that name."""
        return next((program for program in reversed(self._started) if program.name == name), None)

    def running(self) -> list[Program]:
        return [program for program in self._started if program.exit_code is None]

    def stop(self, waiting: Callable[[str], None]) -> None:
        """Ask all, wait for all together, then insist."""
        for program in self.running():
            program.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while self.running() and time.monotonic() < deadline:
            waiting(f"waiting for {', '.join(program.name for program in self.running())} to stop")
            time.sleep(0.01)
        for program in self.running():
            program.kill()

    def left(self) -> list[str]:
        """Processes of ours that still exist, and those that they may have started."""
        return [
            f"{program.name} (pid {program.pid})" for program in self._started if _group_exists(program.pid)
        ]


def _die_with_parent() -> None:
    # Even if the demo is killed with SIGKILL and cannot clean up, no process stays.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # The number has been given to somebody else since.
        return False
    return True
