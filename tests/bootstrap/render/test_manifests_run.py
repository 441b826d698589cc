"""Runs the real programs with the rendered command lines."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from bootbridge.bootstrap.machine import certificates
from bootbridge.bootstrap.machine.node_values import node_values
from bootbridge.bootstrap.plan.plan import ClusterNetwork, IPNetwork, Networking, Plan, Protocol, ProxyImage
from bootbridge.bootstrap.plan.ports import Ports
from bootbridge.bootstrap.render import program_flags
from bootbridge.common.files import write_file
from tests.support.process_endpoints import HttpEndpoint
from tests.support.process_program import free_port, until
from tests.support.process_tunnels import fetch
from tests.support.tunnel_programs import Agent, Programs, Server, binary

PODS = (ClusterNetwork(ip_network("127.0.0.0/8"), 24),)
LOOPBACK, ELSEWHERE = ip_network("127.0.0.0/8"), ip_network("192.0.2.0/24")
interop = pytest.mark.interop
PAIRS = [
    pytest.param("ours", "ours"),
    pytest.param("ours", "go", marks=interop),
    pytest.param("go", "ours", marks=interop),
    pytest.param("go", "go", marks=interop),
]


class Tunnel:
    """Runs server and agent with the flags of the manifests, except for paths."""

    def __init__(
        self,
        programs: Programs,
        protocol: Protocol = Protocol.GRPC,
        *,
        host_network: bool = False,
        machines: IPNetwork = ELSEWHERE,
    ) -> None:
        self.programs = programs
        self.plan = Plan(
            protocol=protocol,
            host_network=host_network,
            networks=Networking(machine=(machines,), cluster=PODS),
            ports=Ports(free_port(), free_port(), free_port(), free_port(), free_port()),
            key_kind="ecdsa-p256",
        )
        self._write_certificates(programs.folder)

    def _write_certificates(self, folder: Path) -> None:
        bundle = certificates.issue(self.plan, [ip_address("127.0.0.1")])
        for path, asset in certificates.files(self.plan, bundle).items():
            write_file(folder / Path(path).name, asset)
        # The agent's files have other names in the Secret.
        shutil.copyfile(folder / "agent.crt", folder / "tls.crt")
        shutil.copyfile(folder / "agent.key", folder / "tls.key")
        # It proves nothing: there is no API server. The default route is left.
        (folder / "token").write_text("a.b.c")

    def _plan_for(self, kind: str) -> Plan:
        return replace(
            self.plan, image=ProxyImage("bootbridge" if kind == "ours" else "konnectivity", "r.example/i:1")
        )

    def _flags(self, arguments: list[str]) -> dict[str, object]:
        """Expands variables as the kubelet does on a node named n1."""
        known = {
            self.plan.paths.socket: str(self.programs.folder / "s.sock"),
            program_flags.CERTIFICATES_SEEN_BY_SERVER: str(self.programs.folder),
            program_flags.TOKEN_SEEN_BY_AGENT: str(self.programs.folder),
            "$(NODE_NAME)": "n1",
            "$(HOST_IP)": "127.0.0.1",
            "$(POD_IP)": "127.0.7.9",
        }
        flags: dict[str, object] = {"v": None}
        for argument in arguments:
            for before, after in known.items():
                argument = argument.replace(before, after)
            name, _, value = argument.removeprefix("--").partition("=")
            flags[name] = value
        return flags

    def server(self, kind: str) -> Server:
        flags = self._flags(program_flags.server_args(self._plan_for(kind)))
        if LOOPBACK in self.plan.networks.machine:
            flags["allow-destinations"] = str(LOOPBACK)  # real machine networks are never there
        return self.programs.server(kind, self.plan.protocol.server_mode, flags=flags)

    def agent(self, kind: str) -> Agent:
        plan = self._plan_for(kind)
        values = node_values(plan, "i", (ip_address("127.0.0.1"),), ca=b"", agent_cert=b"", agent_key=b"")
        arguments = program_flags.agent_args(plan, values)
        return self.programs.agent(self.plan.ports.agent, kind, flags=self._flags(arguments))


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize(("server_kind", "agent_kind"), PAIRS)
def test_server_and_agent_connect(
    programs: Programs, web: HttpEndpoint, server_kind: str, agent_kind: str, protocol: Protocol
) -> None:
    """With either image on either side, and both protocols."""
    tunnel = Tunnel(programs, protocol)
    server = tunnel.server(server_kind)
    agent = tunnel.agent(agent_kind)
    server.wait_until_ready()
    until(lambda: agent.health.get("/readyz")[0] == 200, "the agent is ready")
    assert fetch(server, web.address) == b"hello from the endpoint"


@pytest.mark.parametrize("kind", ["ours", pytest.param("go", marks=interop)])
def test_agents_in_the_host_network(programs: Programs, kind: str) -> None:
    """Their health port listens only on loopback."""
    tunnel = Tunnel(programs, host_network=True)
    server, agent = tunnel.server(kind), tunnel.agent(kind)
    server.wait_until_ready()
    until(lambda: agent.health.get("/readyz")[0] == 200, "the agent is ready")
    for port in (agent.health.port, server.health.port, server.admin.port, agent.admin.port):
        assert not is_open("127.0.0.2", port), "more than 127.0.0.1 is listened on"


def is_open(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_our_server_dials_directly_until_an_agent_connects(programs: Programs, web: HttpEndpoint) -> None:
    """It reaches a kubelet before the first agent, but is not ready without one."""
    server = Tunnel(programs, machines=LOOPBACK).server("ours")
    assert fetch(server, web.address) == b"hello from the endpoint"
    assert server.health.get("/readyz")[0] != 200


UNPRIVILEGED = ("setpriv", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs")


def capabilities_unavailable_reason() -> str:
    if os.geteuid() != 0:
        return "needs root, to become root without capabilities"
    return "" if shutil.which("setpriv") else "needs setpriv"


@pytest.mark.skipif(
    bool(capabilities_unavailable_reason()) and os.environ.get("CI") != "true",
    reason=capabilities_unavailable_reason() or "-",
)
@pytest.mark.parametrize("kind", ["ours", pytest.param("go", marks=interop)])
def test_the_server_needs_no_capability(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """With the pod's securityContext, it reads its key (0600) and creates its socket."""
    program = programs.folder / "without-capabilities"
    real = binary(kind, "proxy-server")
    program.write_text(f'#!/bin/sh\nexec {" ".join(UNPRIVILEGED)} {real} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr("tests.support.tunnel_programs.binary", lambda *_: program)
    server = Tunnel(programs).server(kind)
    status = Path(f"/proc/{server.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert (programs.folder / "server.key").stat().st_mode & 0o777 == 0o600
    assert Path(server.uds).is_socket()
