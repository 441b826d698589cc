"""A tunnel under load, in network namespaces: three agents, callers, a stalled caller, failing dials."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bootbridge.demo.network import DemoNamespaces, NetworkContext, VethPair
from bootbridge.trust.authority import Authority
from tests.support.process_program import PEERS

PROGRAMS = Path(sys.executable).parent
SERVER_ADDRESS = "192.0.2.1"
ADMIN_PORT = 8095
READY_SECONDS = 30
BLOCK = bytes(16384)


@dataclass(frozen=True)
class Node:
    """A cluster node: its address, its pods' network, and the endpoints that run there."""

    name: str
    address: str
    pods: str
    endpoints: tuple[str, ...]
    closed: tuple[str, ...] = ()  # nothing listens there


REFUSED = "10.128.6.20:9443"
NODES = (
    Node("worker-1", "192.0.2.11", "10.128.2.0/23", ("10.128.2.5:8443", "10.128.2.17:9443")),
    Node("worker-2", "192.0.2.12", "10.128.4.0/23", ("10.128.4.9:6443", "10.128.4.12:10250")),
    Node("worker-3", "192.0.2.13", "10.128.6.0/23", ("10.128.6.3:8443",), (REFUSED,)),
)


class LoadedTunnel:
    """The server's namespace and socket, while the load runs."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.socket = str(folder / "proxy.sock")
        self._stopping = threading.Event()
        self._random = random.Random(5)
        self._processes: list[subprocess.Popen[bytes]] = []
        namespaces = DemoNamespaces(f"pictures-{os.getpid()}")
        stack.callback(namespaces.remove)
        stack.callback(self._end)
        self._write_certificates()
        self.server = namespaces.create("server", "server")
        self._start_server()
        for number, node in enumerate(NODES):
            context = namespaces.create(node.name, node.name)
            addresses = ((SERVER_ADDRESS, node.address),)
            devices = (f"to-{number}", "up")
            namespaces.connect(VethPair((self.server, context), devices, addresses))
            self._start_endpoints(node, context)
            self._start_agent(node, context)

    def admin(self) -> str:
        return f"http://127.0.0.1:{ADMIN_PORT}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Processes started in this block see the server's ports."""
        with self.server._entered():
            yield

    # --- programs

    def _write_certificates(self) -> None:
        authority = Authority.create("agents")
        authority.write(self.folder, "ca")
        authority.issue_server([SERVER_ADDRESS]).write(self.folder, "server")
        for node in NODES:
            authority.issue_client(node.name).write(self.folder, node.name)

    def _start_server(self) -> None:
        self._start(
            self.server,
            str(PROGRAMS / "proxy-server"),
            "--mode=http-connect",
            f"--uds-name={self.socket}",
            "--server-port=0",
            "--agent-port=8091",
            "--agent-bind-address=0.0.0.0",
            f"--admin-port={ADMIN_PORT}",
            "--health-port=8092",
            "--proxy-strategies=destHost,cidr,defaultRoute",
            "--agent-cidrs=10.128.0.0/14,192.0.2.0/24",
            "--server-id=bootstrap",
            "--agent-default-route=true",
            *(f"--cluster-{kind}={self.folder / name}" for kind, name in SERVER_FILES),
        )
        _wait(lambda: Path(self.socket).exists(), "the server listens")

    def _start_agent(self, node: Node, context: NetworkContext) -> None:
        # One agent is the original, where it is built: pictures show that both work together.
        go = PEERS / "proxy-agent"
        original = node is NODES[-1] and go.exists()
        self._start(
            context,
            str(go if original else PROGRAMS / "proxy-agent"),
            f"--proxy-server-host={SERVER_ADDRESS}",
            "--proxy-server-port=8091",
            f"--ca-cert={self.folder / 'ca.crt'}",
            f"--agent-cert={self.folder / node.name}.crt",
            f"--agent-key={self.folder / node.name}.key",
            f"--agent-id={node.name}",
            f"--agent-identifiers=ipv4={node.address}&cidr={node.pods}&default-route=true",
            "--sync-interval=1s",
        )

    def _start(self, context: NetworkContext, *command: str) -> None:
        log = (self.folder / f"{context.label}.log").open("wb")
        argv = context.command(command)
        self._processes.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _end(self) -> None:
        self._stopping.set()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # --- load

    def _start_endpoints(self, node: Node, context: NetworkContext) -> None:
        for address in (*node.endpoints, *node.closed):
            host, _, port = address.partition(":")
            own = ["addr", "add", f"{host}/32", "dev", "lo"]
            subprocess.run(["ip", "-n", context.namespace, *own], check=True)
            if address in node.closed:
                continue
            with context._entered():
                listener = socket.create_server((host, int(port)), backlog=128)
            self._thread(lambda listener=listener: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            connection, _ = listener.accept()
            self._thread(lambda connection=connection: self._serve(connection))

    def _serve(self, connection: socket.socket) -> None:
        """Answers `N` with N KiB; `0` with an endless log."""
        with connection:
            while request := connection.recv(64):
                size = int(request.split()[0])
                while not size:
                    connection.sendall(BLOCK)
                connection.sendall(bytes(size * 1024))

    def start_load(self) -> None:
        """Starts callers; numbers differ by destination, so that a picture shows which is which."""
        destinations = [address for node in NODES for address in node.endpoints]
        for number, destination in enumerate(destinations):
            for _ in range(3 + 2 * (number % 3)):
                self._thread(lambda d=destination, n=number: self._call_repeatedly(d, 4 << n % 4))
        for destination in destinations[::2]:
            self._thread(lambda d=destination: self._call_anew(d))
        self._thread(lambda: self._dial_repeatedly(REFUSED, 2.3))
        self._thread(lambda: self._stall(destinations[3]))

    def _call_repeatedly(self, destination: str, kilobytes: int) -> None:
        with self._dial(destination) as connection:
            while not self._stopping.wait(self._random.uniform(0.01, 0.1)):
                self._request(connection, kilobytes)

    def _call_anew(self, destination: str) -> None:
        while not self._stopping.wait(0.15):
            with self._dial(destination) as connection:
                self._request(connection, 2)

    def _dial_repeatedly(self, destination: str, seconds: float) -> None:
        while not self._stopping.wait(seconds):
            self._dial(destination).close()

    def _stall(self, destination: str) -> None:
        """A caller that asks for an endless log and does not read it."""
        with self._dial(destination) as connection:
            connection.sendall(b"0\n")
            self._stopping.wait()

    def _request(self, connection: socket.socket, kilobytes: int) -> None:
        connection.sendall(f"{kilobytes}\n".encode())
        left = kilobytes * 1024
        while left:
            left -= len(connection.recv(left)) or left

    def _dial(self, destination: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.socket)
        connection.sendall(f"CONNECT {destination} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        connection.recv(4096)
        return connection

    def _thread(self, run: Callable[[], None]) -> None:
        def quietly() -> None:
            try:
                run()
            except OSError:
                pass  # the tunnel ends before its callers

        threading.Thread(target=quietly, daemon=True).start()


SERVER_FILES = (("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt"))


@contextmanager
def loaded_tunnel(folder: Path) -> Iterator[LoadedTunnel]:
    """Runs the tunnel and its load; all agents are connected."""
    with ExitStack() as stack:
        tunnel = LoadedTunnel(folder, stack)
        _wait(lambda: _ready_agents(tunnel) == len(NODES), "all agents are connected")
        tunnel.start_load()
        yield tunnel


def _ready_agents(tunnel: LoadedTunnel) -> int:
    try:
        with tunnel.entered(), urllib.request.urlopen("http://127.0.0.1:8092/metrics", timeout=5) as answer:
            page = answer.read().decode()
    except OSError:
        return 0
    name = "konnectivity_network_proxy_server_ready_backend_connections "
    return next((int(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name)), 0)


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"pictures: not within {READY_SECONDS} s: {what}")
        time.sleep(0.1)
