"""Starts a proxy-server with its agent, and tells what the two cost.

Both implementations take the same flags, so one set of arguments serves any mix of
them. Whatever is started here is killed here, by its process id.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from report import OURS

from bootbridge.trust.authority import Authority, KeyKind

ROOT = Path(__file__).resolve().parent.parent
OURS_COMPILED = ROOT / "build" / "compiled" / "bin"
START_SECONDS_MAX = 20
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
# Upstream refuses ports outside this range.
PORTS = range(20_000, 32_000)


class BenchError(Exception):
    """The benchmark cannot go on, and the text says why."""


# --- certificates -------------------------------------------------------------------


@dataclass(frozen=True)
class Certificates:
    """One CA, and a certificate with key for either side."""

    directory: Path

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def of_agents(self) -> dict[str, str]:
        """The load generator's flags for an agent's credentials."""
        return {"cert": self.path("agent.crt"), "key": self.path("agent.key"), "ca": self.path("ca.crt")}


def make_certificates(directory: Path, key: KeyKind = "rsa-2048") -> Certificates:
    authority = Authority.create("bench-ca", key=key)
    authority.write(directory)
    authority.issue_server(["localhost", "127.0.0.1"]).write(directory, "server")
    authority.issue_client("bench-agent").write(directory, "agent")
    return Certificates(directory)


# --- processes ----------------------------------------------------------------------


@dataclass
class Process:
    """A running child, what it costs and what it wrote."""

    title: str
    popen: subprocess.Popen[str]
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def rss_mib(self) -> float:
        return self._rollup("Rss:") / 1024

    def peak_mib(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise BenchError(f"{self.title}: no VmHWM in its status")

    def _rollup(self, field_name: str) -> int:
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(field_name):
                return int(line.split()[1])
        raise BenchError(f"{self.title}: no {field_name} in its smaps_rollup")

    def cpu_seconds(self) -> float:
        """User and system time of all its threads."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        # The name in parentheses may hold anything; what follows it is regular.
        fields = stat[stat.rindex(")") + 2 :].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def check_alive(self) -> None:
        if self.popen.poll() is not None:
            tail = self.log.read_text(errors="replace")[-800:].strip() or "no output"
            raise BenchError(f"{self.title} exited with {self.popen.returncode}: {tail}")


@dataclass
class Processes:
    """All children of this run; leaving it kills every one of them."""

    directory: Path
    running: list[Process] = field(default_factory=list)

    def start(self, title: str, argv: list[str], **pipes: int) -> Process:
        log = self.directory / f"{title.replace(' ', '-')}.log"
        with log.open("w") as output:
            popen = subprocess.Popen(
                argv,
                stdin=pipes.get("stdin", subprocess.DEVNULL),
                stdout=pipes.get("stdout", output),
                stderr=output,
                text=True,
                # Ctrl-C is for us: we then end the children in our own order.
                process_group=0,
            )
        process = Process(title, popen, log)
        self.running.append(process)
        return process

    def kill(self, process: Process) -> None:
        if process.popen.poll() is None:
            # The Go agent drains at SIGTERM and stays.
            process.popen.kill()
        process.popen.wait()
        for pipe in (process.popen.stdin, process.popen.stdout):
            close_quietly(pipe)
        self.running.remove(process)

    def kill_all(self) -> None:
        for process in list(reversed(self.running)):
            self.kill(process)


def close_quietly(pipe: IO[str] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()


@contextlib.contextmanager
def processes(directory: Path) -> Iterator[Processes]:
    """SIGTERM ends the run as Ctrl-C does: through every finally."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    children = Processes(directory)
    try:
        yield children
    finally:
        children.kill_all()


_given_ports: set[int] = set()


def free_port() -> int:
    while True:
        port = random.choice(PORTS)
        if port in _given_ports:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given_ports.add(port)
        return port


# --- pairs --------------------------------------------------------------------------


@dataclass(frozen=True)
class Implementation:
    """A directory that holds a `proxy-server` and a `proxy-agent`."""

    name: str
    directory: Path

    @property
    def is_ours(self) -> bool:
        return self.name == OURS

    def command(self, program: str) -> str:
        path = self.directory / program
        if not os.access(path, os.X_OK):
            raise BenchError(f"{self.name}: {path} is missing (ours: `make compiled`, Go: `make peers`)")
        return str(path)


@dataclass(frozen=True)
class Extra:
    """What one benchmark adds to the command lines; `wrapper` is a command that runs the server."""

    wrapper: tuple[str, ...] = ()
    server_flags: tuple[str, ...] = ()
    agent_flags: tuple[str, ...] = ()


PLAIN = Extra()


@dataclass
class Server:
    """A running proxy-server with a unix-socket frontend."""

    process: Process
    argv: list[str]
    mode: str
    uds: str
    agent_port: int
    health_port: int
    admin_port: int

    def restarted(self, children: Processes) -> "Server":
        """Returns a server with the same command line, started after this one has ended."""
        return replace(self, process=children.start(f"{self.process.title} again", self.argv))

    def answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait_for(self, path: str, *others: Process) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.answers(path):
            for process in (self.process, *others):
                process.check_alive()
            if time.monotonic() > deadline:
                raise BenchError(f"{self.process.title}: {path} is not 200 after {START_SECONDS_MAX} s")
            time.sleep(0.05)


def start_server(
    children: Processes,
    kind: Implementation,
    title: str,
    mode: str,
    certs: Certificates,
    extra: Extra = PLAIN,
) -> Server:
    uds = str(children.directory / f"{title.replace(' ', '-')}.sock")
    agent_port, health_port, admin_port = free_port(), free_port(), free_port()
    argv = [
        *extra.wrapper,
        kind.command("proxy-server"),
        f"--uds-name={uds}",
        f"--mode={mode}",
        "--server-port=0",
        "--delete-existing-uds-file=true",
        f"--cluster-cert={certs.path('server.crt')}",
        f"--cluster-key={certs.path('server.key')}",
        f"--cluster-ca-cert={certs.path('ca.crt')}",
        f"--agent-port={agent_port}",
        "--agent-bind-address=127.0.0.1",
        f"--health-port={health_port}",
        "--health-bind-address=127.0.0.1",
        f"--admin-port={admin_port}",
        "--v=0",
        *extra.server_flags,
    ]
    process = children.start(f"{title} server", argv)
    server = Server(process, argv, mode, uds, agent_port, health_port, admin_port)
    server.wait_for("/healthz")
    return server


def start_agent(
    children: Processes,
    kind: Implementation,
    title: str,
    server: Server,
    certs: Certificates,
    extra: Extra = PLAIN,
) -> Process:
    argv = [
        kind.command("proxy-agent"),
        f"--ca-cert={certs.path('ca.crt')}",
        f"--agent-cert={certs.path('agent.crt')}",
        f"--agent-key={certs.path('agent.key')}",
        "--proxy-server-host=127.0.0.1",
        f"--proxy-server-port={server.agent_port}",
        "--health-server-host=127.0.0.1",
        f"--health-server-port={free_port()}",
        f"--admin-server-port={free_port()}",
        "--agent-id=bench",
        "--v=0",
        *extra.agent_flags,
        # The backends are on loopback, which ours refuses by default; the original has no such flag.
        *(["--allow-destinations=127.0.0.0/8"] if kind.is_ours else []),
    ]
    return children.start(f"{title} agent", argv)


@dataclass
class Pair:
    """A server and an agent that are connected and ready."""

    name: str
    server: Server
    agent: Process

    def cpu_seconds(self) -> float:
        return self.server.process.cpu_seconds() + self.agent.cpu_seconds()

    def check_alive(self) -> None:
        self.server.process.check_alive()
        self.agent.check_alive()


def start_pair(
    children: Processes,
    name: str,
    kinds: tuple[Implementation, Implementation],
    mode: str,
    certs: Certificates,
    extra: Extra = PLAIN,
) -> Pair:
    title = f"{name} {mode}"
    server = start_server(children, kinds[0], title, mode, certs, extra)
    agent = start_agent(children, kinds[1], title, server, certs, extra)
    server.wait_for("/readyz", agent)
    print(f"  {title}: ready, server pid {server.process.pid}, agent pid {agent.pid}", flush=True)
    return Pair(name, server, agent)
