"""Starts each program of the demo, waits until it is ready, and calls the webhook through the tunnel."""

from __future__ import annotations

import http.client
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from bootbridge.demo.calls import CallFailed, WebhookConnection, directly, through_tunnel
from bootbridge.demo.certificates import DemoCertificates
from bootbridge.demo.environment import DemoEnvironment, DemoNode, endpoint, free_ports
from bootbridge.demo.network import NetworkContext
from bootbridge.demo.processes import DemoProcess
from bootbridge.demo.steps import StepFailed, Steps
from bootbridge.demo.workspace import DemoWorkspace

START_SECONDS = 20.0

# -P: imports come from the installation, never from the working directory.
MODULES = {
    "server": (sys.executable, "-P", "-m", "bootbridge.cli.server"),
    "agent": (sys.executable, "-P", "-m", "bootbridge.cli.agent"),
    "webhook": (sys.executable, "-P", "-m", "bootbridge.demo.webhook"),
    "forward": (sys.executable, "-P", "-m", "bootbridge.cli.main", "forward"),
}
_READY_AGENTS = re.compile(
    rb'^konnectivity_network_proxy_server_ready_backends\{proxy_strategy="default"\} (\d+)', re.MULTILINE
)


@dataclass
class DemoPrograms:
    steps: Steps
    workspace: DemoWorkspace
    environment: DemoEnvironment
    certificates: DemoCertificates

    def start_webhook(self) -> None:
        environment, (cert, key) = self.environment, self.certificates.webhook
        listen = [f"--listen={address}" for address in environment.pod_addresses]
        flags = [*listen, f"--port={environment.pod_port}", f"--cert={cert}", f"--key={key}"]
        process = self._start("webhook", environment.pod, (*MODULES["webhook"], *flags))
        self._wait(process, self._webhook_answers, "a response of the webhook to node1")

    def start_server(self) -> None:
        environment, (cert, key) = self.environment, self.certificates.server
        flags = [
            "--mode=http-connect",
            f"--uds-name={self.workspace.unix_socket}",
            "--server-port=0",
            f"--cluster-cert={cert}",
            f"--cluster-key={key}",
            f"--cluster-ca-cert={self.certificates.tunnel_ca}",
            f"--agent-bind-address={environment.server_bind}",
            f"--agent-port={environment.agent_port}",
            "--health-bind-address=127.0.0.1",
            f"--health-port={environment.health_port}",
            f"--admin-port={environment.admin_port}",
        ]
        process = self._start("proxy-server", environment.control_plane, (*MODULES["server"], *flags))
        self._wait(process, lambda: self.connected_agents() is not None, "the proxy-server to start")

    def start_agent(self, node: DemoNode) -> None:
        cert, key = self.certificates.agents[node.name]
        pods = self.environment.pod_addresses
        flags = [
            f"--proxy-server-host={node.server_host}",
            f"--proxy-server-port={self.environment.agent_port}",
            f"--ca-cert={self.certificates.tunnel_ca}",
            f"--agent-cert={cert}",
            f"--agent-key={key}",
            f"--agent-id={node.name}",
            f"--allow-destinations={','.join(str(ip_network(each)) for each in pods)}",
            "--health-server-host=127.0.0.1",
            f"--health-server-port={node.health_port}",
            f"--admin-server-port={node.admin_port}",
        ]
        self._start(agent_name(node), node.network, (*MODULES["agent"], *flags))

    def start_forward(self) -> int:
        """Forwards a loopback port to the pod, for clients that cannot use unix sockets; returns the port."""
        port, here = free_ports(1)[0], NetworkContext("this machine")
        pod = endpoint(self.environment.pod_addresses[0], self.environment.pod_port)
        words = [f"--socket={self.workspace.unix_socket}", f"127.0.0.1:{port}", pod]
        process = self._start("forward", here, (*MODULES["forward"], *words))
        self._wait(process, lambda: _listens(here, port), "the forward to start")
        return port

    def wait_for_agents(self) -> None:
        """Waits until the server reports one agent per node."""
        count = len(self.environment.nodes)
        for node in self.environment.nodes:
            what = f"{count} agents to connect"
            self._wait(self.agent_on(node), lambda: self.connected_agents() == count, what)

    def connected_agents(self) -> int | None:
        """Returns the server's own count; None while the server does not answer."""
        try:
            text = self._get(self.environment.control_plane, self.environment.health_port, "/metrics")
        except (OSError, http.client.HTTPException):
            return None
        found = _READY_AGENTS.search(text)
        return int(found[1]) if found else None

    def agent_on(self, node: DemoNode) -> DemoProcess:
        process = self.workspace.processes.named(agent_name(node))
        assert process is not None, f"no agent was started on {node.name}"
        return process

    def connect(self, address: str) -> WebhookConnection:
        """Returns a connection to the webhook through the tunnel."""
        sock = through_tunnel(self.workspace.unix_socket, address, self.environment.pod_port)
        return WebhookConnection(sock, self.certificates.webhook_client_context())

    def call(self, address: str, labels: dict[str, str]) -> dict[str, Any]:
        with self.connect(address) as connection:
            return connection.review(labels)

    def node_of(self, response: dict[str, Any]) -> DemoNode | None:
        """Returns the node whose agent dialled, by the webhook's view of the connection; None on loopback."""
        return self.environment.node_seen_as(response["auditAnnotations"]["seen-from"])

    def _start(self, name: str, context: NetworkContext, argv: Sequence[str]) -> DemoProcess:
        return self.workspace.processes.start(name, context, argv)

    def _wait(self, process: DemoProcess, condition: Callable[[], bool], what: str) -> None:
        def settled() -> bool:
            return process.exit_code is not None or condition()

        in_time = self.steps.wait_until(settled, what, START_SECONDS)
        if process.exit_code is not None:
            raise StepFailed(f"{process.name} exited with code {process.exit_code}", process.name)
        if not in_time:
            raise StepFailed(f"timed out after {START_SECONDS:.0f}s waiting for {what}", process.name)

    def _webhook_answers(self) -> bool:
        """Calls all addresses of the webhook from a node, without the tunnel."""
        context, port = self.environment.nodes[0].network, self.environment.pod_port
        tls = self.certificates.webhook_client_context()
        try:
            for address in self.environment.pod_addresses:
                with WebhookConnection(directly(context, address, port), tls) as connection:
                    connection.review({})
        except CallFailed:
            return False
        return True

    def _get(self, context: NetworkContext, port: int, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.sock = context.connect("127.0.0.1", port, timeout=2.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def pod_endpoints(self) -> str:
        environment = self.environment
        return " and ".join(endpoint(host, environment.pod_port) for host in environment.pod_addresses)


def _listens(context: NetworkContext, port: int) -> bool:
    try:
        context.connect("127.0.0.1", port, timeout=1.0).close()
    except OSError:
        return False
    return True


def agent_name(node: DemoNode) -> str:
    return f"proxy-agent-{node.name}"
