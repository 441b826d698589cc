"""Servers and agents, ours or the originals, wired up with certificates and free ports."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.certificates import Certificates
from tests.support.process_program import OURS, PEERS, Flags, Program, free_port, until

SERVER_METRICS = "konnectivity_network_proxy_server_"
AGENT_METRICS = "konnectivity_network_proxy_agent_"
# Every address, and loopback, where the endpoints of tests are. The originals have no such flag.
ANY_DESTINATION = "0.0.0.0/0,::/0,127.0.0.0/8,::1/128"
_LABEL = re.compile(r'\w+="(?:[^"\\]|\\.)*"')
_SAMPLE = re.compile(r"^([a-zA-Z_:]\w*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Pairing:
    """Whose server and whose agent: `ours` or `go`."""

    server: str
    agent: str

    def __str__(self) -> str:
        return f"{self.server}-server-{self.agent}-agent"

    @property
    def extended(self) -> bool:
        """Whether credit and half-close are agreed on."""
        return self.server == self.agent == "ours"


OURS_ALONE = Pairing("ours", "ours")
OUR_SERVER = Pairing("ours", "go")
OUR_AGENT = Pairing("go", "ours")


def binary(kind: str, name: str) -> Path:
    return (OURS if kind == "ours" else PEERS) / name


class Web:
    """A program's plain HTTP port."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self._base = f"http://{host}:{port}"

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self._base + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metrics(self) -> dict[str, float]:
        """Samples by name, those with labels as `name{label="value"}`, labels in alphabetical order."""
        _, text = self.get("/metrics")
        return {
            f"{name}{{{','.join(sorted(_LABEL.findall(labels)))}}}" if labels else name: float(value)
            for name, labels, value in _SAMPLE.findall(text)
        }

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.get("/status")[1])
        return answer


class Server(Program):
    """A proxy-server and the ways to it."""

    mode: str
    uds: str
    agent_port: int
    frontend_port: int
    health: Web
    admin: Web
    certificates: Certificates

    def metric(self, name: str, **labels: str) -> float:
        return self.health.metrics().get(SERVER_METRICS + _labelled(name, labels), 0.0)

    def wait_until_ready(self) -> None:
        until(lambda: self.health.get("/readyz")[0] == 200 or self._dead(), f"{self.title} has an agent")

    def wait_for_agents(self, count: int, seconds: float = 20) -> None:
        name = "ready_backend_connections"
        until(lambda: self.metric(name) == count, f"{self.title} has {count} agents", seconds)

    def _dead(self) -> bool:
        assert self.alive, f"{self.title} ended: {self.log[-2000:]}"
        return False


class Agent(Program):
    """A proxy-agent and its ports."""

    health: Web
    admin: Web

    def metric(self, name: str, **labels: str) -> float:
        return self.health.metrics().get(AGENT_METRICS + _labelled(name, labels), 0.0)

    def wait_for_servers(self, count: int, seconds: float = 20) -> None:
        name = "open_server_connections"
        until(lambda: self.metric(name) == count, f"{self.title} has {count} servers", seconds)


class Programs:
    """All programs of one test. `close` ends them and looks for what only a bug leaves behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = Certificates(folder)
        self._started: list[Program] = []

    # --- servers

    def server_flags(self, mode: str, *, tcp: bool, more: Flags) -> dict[str, object]:
        flags: dict[str, object] = {
            "mode": mode,
            "agent-port": free_port(),
            "admin-port": free_port(),
            "health-port": free_port(),
            "v": 0,
            **self.certificates.agent_port_flags(),
        }
        if tcp:
            flags |= {"server-port": free_port(), **self.certificates.frontend_port_flags()}
        else:
            flags |= {"server-port": 0, "uds-name": str(self.folder / f"{flags['agent-port']}.sock")}
        return flags | dict(more)

    def server(
        self,
        kind: str = "ours",
        mode: str = "http-connect",
        *,
        tcp: bool = False,
        flags: Flags | None = None,
        env: Mapping[str, str] | None = None,
        stderr: int = subprocess.STDOUT,
        descriptors_max: int | None = None,
    ) -> Server:
        """Start a server and wait until it is up (not until it has an agent)."""
        server = self.launch_server(
            kind, mode, tcp=tcp, flags=flags, env=env, stderr=stderr, descriptors_max=descriptors_max
        )
        until(
            lambda: not server.alive or server.health.get("/healthz")[0] == 200, f"{server.title} is healthy"
        )
        assert server.alive, f"{server.title} ended: {server.log[-2000:]}"
        if server.uds:
            until(lambda: Path(server.uds).exists(), f"{server.title} has its socket")
        return server

    def launch_server(
        self,
        kind: str = "ours",
        mode: str = "http-connect",
        *,
        tcp: bool = False,
        flags: Flags | None = None,
        env: Mapping[str, str] | None = None,
        stderr: int = subprocess.STDOUT,
        descriptors_max: int | None = None,
    ) -> Server:
        """Start a server and wait for nothing: it may be meant to fail."""
        chosen = self.server_flags(mode, tcp=tcp, more=flags or {})
        program = binary(kind, "proxy-server")
        server = Server(
            program,
            chosen,
            self.folder,
            title=f"{kind}-server",
            env=env,
            stderr=stderr,
            descriptors_max=descriptors_max,
        )
        self._started.append(server)
        server.mode = mode
        server.uds = str(chosen.get("uds-name") or "")
        server.agent_port = int(str(chosen["agent-port"]))
        server.frontend_port = int(str(chosen["server-port"]))
        server.health = Web(int(str(chosen["health-port"])))
        server.admin = Web(int(str(chosen["admin-port"])))
        server.certificates = self.certificates
        return server

    # --- agents

    def agent_flags(self, kind: str, port: int, more: Flags) -> dict[str, object]:
        flags: dict[str, object] = {
            "proxy-server-host": "127.0.0.1",
            "proxy-server-port": port,
            "health-server-port": free_port(),
            "admin-server-port": free_port(),
            "sync-interval": "100ms",
            "sync-interval-cap": "500ms",
            "probe-interval": "100ms",
            "v": 0,
            **self.certificates.agent_flags(),
        }
        if kind == "ours":
            flags["allow-destinations"] = ANY_DESTINATION
        return flags | dict(more)

    def agent(
        self,
        to: Server | int,
        kind: str = "ours",
        *,
        flags: Flags | None = None,
        env: Mapping[str, str] | None = None,
        stderr: int = subprocess.STDOUT,
    ) -> Agent:
        """Start an agent and wait until its health port answers."""
        agent = self.launch_agent(to, kind, flags=flags, env=env, stderr=stderr)
        until(lambda: not agent.alive or agent.health.get("/healthz")[0] == 200, f"{agent.title} is healthy")
        assert agent.alive, f"{agent.title} ended: {agent.log[-2000:]}"
        return agent

    def launch_agent(
        self,
        to: Server | int,
        kind: str = "ours",
        *,
        flags: Flags | None = None,
        env: Mapping[str, str] | None = None,
        stderr: int = subprocess.STDOUT,
    ) -> Agent:
        port = to if isinstance(to, int) else to.agent_port
        chosen = self.agent_flags(kind, port, flags or {})
        program = binary(kind, "proxy-agent")
        agent = Agent(program, chosen, self.folder, title=f"{kind}-agent", env=env, stderr=stderr)
        self._started.append(agent)
        agent.health = Web(int(str(chosen["health-server-port"])))
        agent.admin = Web(int(str(chosen["admin-server-port"])))
        return agent

    def pair(
        self,
        pairing: Pairing = OURS_ALONE,
        mode: str = "http-connect",
        *,
        tcp: bool = False,
        server_flags: Flags | None = None,
        agent_flags: Flags | None = None,
    ) -> tuple[Server, Agent]:
        """A server and its agent, connected with each other."""
        server = self.server(pairing.server, mode, tcp=tcp, flags=server_flags)
        agent = self.agent(server, pairing.agent, flags=agent_flags)
        server.wait_until_ready()
        return server, agent

    # --- the end

    def close(self) -> None:
        for program in reversed(self._started):
            program.kill()
        complaints = [line for program in self._started if program.ours for line in program.complaints()]
        assert not complaints, complaints


def _labelled(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name
