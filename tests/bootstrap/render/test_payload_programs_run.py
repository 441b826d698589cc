"""Runs the Go programs of old and new releases with the manifests that the node's shell renders for them."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import pytest
import yaml

from bootbridge.bootstrap.plan.plan import Networking, Plan, Protocol
from bootbridge.bootstrap.render import program_flags
from tests.bootstrap.render import fake_programs
from tests.bootstrap.render.fake_programs import NEWEST, OLDEST
from tests.bootstrap.render.shell_node import Network, Node, needs_node
from tests.support.process_program import PEERS, until

pytestmark = [pytest.mark.interop, needs_node]
PROGRAMS = ("proxy-server", "proxy-agent")
IPV4 = Networking()
IPV6 = Networking(machine=(ip_network("fd00:1::/48"),), service=(ip_network("fd02::/112"),))


def program(name: str, version: str) -> Path:
    path = PEERS / (name if version == NEWEST else f"{name}-{version}")
    assert path.exists(), f"{path} is missing: run peers/build"
    return path


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_stand_ins_flags_are_those_of_the_real_program(name: str, version: str) -> None:
    """The file is a copy of its output, except for the random default of an id."""
    done = subprocess.run([program(name, version), "--help"], capture_output=True, text=True, check=True)

    text = re.sub(r'\(default "[0-9a-f-]{36}"\)', '(default "0")', done.stdout)
    assert text == fake_programs.help_text(name, version)


@pytest.fixture
def network(network: Network) -> Network:
    network.interface("nic0", "10.0.0.5/24", "fd00:1::5/64")
    return network


@dataclass
class Tunnel:
    """Server and agent of a version, on a node of one IP family, with the manifests' arguments."""

    node: Node
    folder: Path
    version: str

    def start(self, name: str, manifest: str) -> None:
        document = yaml.safe_load(self.node.path(manifest).read_text())
        spec = document["spec"].get("template", document)["spec"]
        paths = self.node.plan.paths
        known = {
            paths.socket: str(self.folder / "s.sock"),
            program_flags.CERTIFICATES_SEEN_BY_SERVER: str(self.folder),
            "$(NODE_NAME)": "n1",
            "$(HOST_IP)": "10.0.0.5",
            "$(POD_IP)": "10.0.0.5",
        }
        arguments = []
        for argument in spec["containers"][0]["args"]:
            for before, after in known.items():
                argument = argument.replace(before, after)
            arguments.append(argument)
        self.node.network.start([str(program(name, self.version)), *arguments])

    def copy_certificates(self) -> None:
        for path in self.node.path(self.node.plan.paths.tls).iterdir():
            shutil.copy(path, self.folder / path.name.replace("agent.", "tls."))


@pytest.fixture
def folder() -> Iterator[Path]:
    # Below /tmp: the path of a unix socket is limited to 108 bytes.
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize("networks", [IPV4, IPV6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_connection_through_the_payloads_programs(
    tmp_path: Path, network: Network, folder: Path, version: str, networks: Networking, protocol: Protocol
) -> None:
    """The agent connects with the address that it was given, and a CONNECT reaches an endpoint."""
    plan = Plan(key_kind="ecdsa-p256", networks=networks, protocol=protocol)
    node = Node(tmp_path / "node", network, plan)
    node.offer_programs(version)
    node.run_checked("bootbridge_setup\nbootbridge_manifests")
    network.end_processes()
    tunnel = Tunnel(node, folder, version)
    tunnel.copy_certificates()
    tunnel.start("proxy-server", plan.paths.server_pod)
    tunnel.start("proxy-agent", plan.paths.daemonset_manifest)

    with network.entered():
        # v0.0.30's agent is ready before it is connected.
        until(lambda: _status(plan.ports.server_health, "/readyz") == 200, "the server has an agent")
        until(lambda: _status(plan.ports.agent_health, "/readyz") == 200, "the agent is connected")
        if protocol is Protocol.HTTP_CONNECT:
            assert _through_tunnel(folder / "s.sock", networks.families[0]) == b"hello"


def _status(port: int, path: str) -> int:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
            return int(connection.makefile("rb").readline().split()[1])
    except (OSError, IndexError):
        return 0


def _through_tunnel(path: Path, family: int) -> bytes:
    host = "10.0.0.5" if family == 4 else "fd00:1::5"
    with (
        socket.create_server(
            (host, 0), family=socket.AF_INET if family == 4 else socket.AF_INET6
        ) as endpoint,
        socket.socket(socket.AF_UNIX) as caller,
    ):
        shown = (
            f"{host}:{endpoint.getsockname()[1]}" if family == 4 else f"[{host}]:{endpoint.getsockname()[1]}"
        )
        caller.settimeout(20)
        endpoint.settimeout(20)
        caller.connect(str(path))
        caller.sendall(f"CONNECT {shown} HTTP/1.1\r\nHost: {shown}\r\n\r\n".encode())
        accepted, _ = endpoint.accept()
        with accepted:
            head = b""
            while b"\r\n\r\n" not in head:
                head += caller.recv(1)
            assert b" 200 " in head
            accepted.sendall(b"hello")
            return caller.recv(5)
