"""Runs the Go programs of old and new releases with the manifests that the node's shell renders for them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path

import pytest
import yaml

from bootbridge.bootstrap.plan.plan import Networking, Plan, Protocol
from bootbridge.bootstrap.render import program_flags
from tests.bootstrap.render import fake_programs
from tests.bootstrap.render.fake_programs import NEWEST, OLDEST
from tests.bootstrap.render.shell_node import Network, Node, needs_node
from tests.support.process_program import PEERS, flag_arguments, until

pytestmark = [pytest.mark.interop, needs_node]
PROGRAMS = ("proxy-server", "proxy-agent")
PAGE = "hello from the endpoint"
REQUESTS = 3
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
    """The agent connects with the address that it was given, and the Go client reaches an endpoint."""
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
        result = _ask_through_tunnel(folder / "s.sock", protocol, networks.families[0])
    assert result.returncode == 0, result.stdout
    assert result.stdout.count(PAGE) == REQUESTS, result.stdout


def _status(port: int, path: str) -> int:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
            return int(connection.makefile("rb").readline().split()[1])
    except (OSError, IndexError):
        return 0


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE.encode())


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def _ask_through_tunnel(path: Path, protocol: Protocol, family: int) -> subprocess.CompletedProcess[str]:
    """Gets a page of an endpoint in the network, with the Go client, as a kube-apiserver does."""
    host, kind = ("10.0.0.5", ThreadingHTTPServer) if family == 4 else ("fd00:1::5", _Server6)
    with kind((host, 0), _Page) as endpoint:
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        flags = {
            "mode": protocol.server_mode,
            "proxy-uds": path,
            "proxy-host": "",
            "proxy-port": 0,
            "request-host": host,
            "request-port": endpoint.server_address[1],
            "request-path": "page",
            "test-requests": REQUESTS,
        }
        try:
            return subprocess.run(
                [str(PEERS / "proxy-test-client"), *flag_arguments(flags)],
                # It takes any signal for the end, and on a busy machine Go interrupts its threads with one.
                env={**os.environ, "GODEBUG": "asyncpreemptoff=1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            endpoint.shutdown()
