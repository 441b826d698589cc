"""A program under test: started with flags, watched through its log, ended by its process id."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
OURS = Path(sys.executable).parent  # so that a compiled installation is tested with its own programs
PEERS = ROOT / os.environ.get("BOOTBRIDGE_PEERS", "build/peers")
# The originals refuse ports outside 1024..49151, and the kernel hands out those above 32767.
PORTS = range(20_000, 32_000)
PORTS_PER_PROCESS = 300
# Generous: it bounds how long a broken program can hold up a test, and decides nothing else.
DEADLINE_SECONDS = 20.0

Flags = Mapping[str, object]
T = TypeVar("T")
_ports: deque[int] = deque()
_reservations: list[socket.socket] = []


def until(condition: Callable[[], T], what: str, seconds: float = DEADLINE_SECONDS) -> T:
    """Wait for a condition and return its value; fail with `what` if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.01)


def free_port() -> int:
    """Returns a free port that no other test process of this machine uses."""
    if not _ports:
        _reserve_ports()
    while True:
        _ports.rotate()
        try:
            socket.create_server(("", _ports[0]), family=socket.AF_INET6, dualstack_ipv6=True).close()
        except OSError:
            continue
        return _ports[0]


def _reserve_ports() -> None:
    """Reserves a block of ports until this process ends, so that tests of concurrent runs do not collide."""
    blocks = [PORTS[start : start + PORTS_PER_PROCESS] for start in range(0, len(PORTS), PORTS_PER_PROCESS)]
    for block in random.sample(blocks, len(blocks)):
        # The kernel gives an abstract address to one socket per network namespace, and frees it on exit.
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            reservation.bind(f"\0bootbridge-test-ports-{block.start}")
        except OSError:
            reservation.close()
            continue
        _reservations.append(reservation)
        _ports.extend(block)
        return
    raise AssertionError(f"all {len(blocks)} blocks of test ports are reserved by other processes")


class Program:
    """One process, its standard output and error in a file, or its error in a descriptor of the test."""

    def __init__(
        self,
        binary: Path | str,
        flags: Flags,
        folder: Path,
        *,
        title: str = "",
        env: Mapping[str, str] | None = None,
        stderr: int = subprocess.STDOUT,
        descriptors_max: int | None = None,
    ) -> None:
        self.binary = Path(binary)
        self.title = title or self.binary.name
        self.log_path = folder / f"{self.title}-{time.monotonic_ns()}.log"
        self.argv = [str(binary), *flag_arguments(flags)]
        limit = [] if descriptors_max is None else ["prlimit", f"--nofile={descriptors_max}"]
        with self.log_path.open("wb") as log:
            self._popen = subprocess.Popen(
                [*limit, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=stderr,
                env={**os.environ, **(env or {})},
            )

    @property
    def ours(self) -> bool:
        return self.binary.parent == OURS

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_for_log(self, text: str, seconds: float = DEADLINE_SECONDS) -> None:
        try:
            until(lambda: text in self.log, f"{text!r} in the log of {self.title}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log[-3000:]}") from None

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait until it has ended by itself; its exit code."""
        return self._popen.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.alive:
            self._popen.kill()
        self._popen.wait()

    def pause(self) -> None:
        """Returns when every thread has stopped: the signal alone stops none that is just running."""
        self.signal(signal.SIGSTOP)
        until(lambda: set(self._thread_states()) == {"T"}, f"{self.title} stands still")

    def _thread_states(self) -> Iterator[str]:
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            yield stat.read_text().rpartition(")")[2].split()[0]

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def rss_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"{self.title} has no resident memory: it is gone")

    def complaints(self) -> list[str]:
        """Lines that only a bug writes."""
        signs = ("Traceback", "task failed", "Exception ignored", "Task was destroyed", "never awaited")
        return [line for line in self.log.splitlines() if any(sign in line for sign in signs)]


def flag_arguments(flags: Flags) -> list[str]:
    return [f"--{name}={_value(value)}" for name, value in flags.items() if value is not None]


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
