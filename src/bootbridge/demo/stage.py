"""The stage: the programs at their places, and the ways to call the webhook from there."""

from __future__ import annotations

import http.client
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bootbridge.demo.calls import Conversation, HopFailed, directly, through_tunnel
from bootbridge.demo.certificate_files import Workshop
from bootbridge.demo.certificates import Papers
from bootbridge.demo.network import Place
from bootbridge.demo.processes import Program
from bootbridge.demo.site import Node, Site, endpoint, free_ports
from bootbridge.demo.steps import StepFailed, Steps

START_SECONDS = 20.0

# -P: modules come from the installation, never from the directory the demo was started in.
MODULES = {
    "server": (sys.executable, "-P", "-m", "bootbridge.cli.server"),
    "agent": (sys.executable, "-P", "-m", "bootbridge.cli.agent"),
    "webhook": (sys.executable, "-P", "-m", "bootbridge.demo.webhook"),
    "relay": (sys.executable, "-P", "-m", "bootbridge.demo.relay"),
}
_READY_AGENTS = re.compile(
    rb'^konnectivity_network_proxy_server_ready_backends\{proxy_strategy="default"\} (\d+)', re.MULTILINE
)


@dataclass
class Stage:
    """Knows how each program is started and when it is ready."""

    steps: Steps
    workshop: Workshop
    site: Site
    papers: Papers

    def start_webhook(self) -> None:
        cert, key = self.papers.webhook
        listen = [f"--listen={address}" for address in self.site.pod_addresses]
        flags = [*listen, f"--port={self.site.pod_port}", f"--cert={cert}", f"--key={key}"]
        program = self._start("webhook", self.site.pod, (*MODULES["webhook"], *flags))
        self._wait(program, self._webhook_answers, "the webhook to answer node1")

    def start_server(self) -> None:
        site, (cert, key) = self.site, self.papers.server
        flags = [
            "--mode=http-connect",
            f"--uds-name={self.workshop.unix_socket}",
            "--server-port=0",
            f"--cluster-cert={cert}",
            f"--cluster-key={key}",
            f"--cluster-ca-cert={self.papers.tunnel_ca}",
            f"--agent-bind-address={site.server_bind}",
            f"--agent-port={site.agent_port}",
            "--health-bind-address=127.0.0.1",
            f"--health-port={site.health_port}",
            f"--admin-port={site.admin_port}",
        ]
        program = self._start("proxy-server", site.control_plane, (*MODULES["server"], *flags))
        self._wait(program, lambda: self.agents_connected() is not None, "the proxy-server to start")

    def start_agent(self, node: Node) -> None:
        cert, key = self.papers.agents[node.name]
        flags = [
            f"--proxy-server-host={node.server_host}",
            f"--proxy-server-port={self.site.agent_port}",
            f"--ca-cert={self.papers.tunnel_ca}",
            f"--agent-cert={cert}",
            f"--agent-key={key}",
            f"--agent-id={node.name}",
            "--health-server-host=127.0.0.1",
            f"--health-server-port={node.health_port}",
            f"--admin-server-port={node.admin_port}",
        ]
        self._start(agent_name(node), node.place, (*MODULES["agent"], *flags))

    def start_relay(self) -> int:
        """For callers that know no unix sockets; the result is the loopback port to use instead."""
        port, here = free_ports(1)[0], Place("this machine")
        flags = [f"--port={port}", f"--unix-socket={self.workshop.unix_socket}"]
        program = self._start("relay", here, (*MODULES["relay"], *flags))
        self._wait(program, lambda: _listens(here, port), "the relay to start")
        return port

    def wait_for_agents(self) -> None:
        """Until the server counts one agent per node."""
        everybody = len(self.site.nodes)
        for node in self.site.nodes:
            what = f"{everybody} agents to be connected"
            self._wait(self.agent_on(node), lambda: self.agents_connected() == everybody, what)

    def agents_connected(self) -> int | None:
        """What the server itself reports; None while it does not answer."""
        try:
            text = self._get(self.site.control_plane, self.site.health_port, "/metrics")
        except (OSError, http.client.HTTPException):
            return None
        found = _READY_AGENTS.search(text)
        return int(found[1]) if found else None

    def agent_on(self, node: Node) -> Program:
        program = self.workshop.programs.named(agent_name(node))
        assert program is not None, f"no agent was started on {node.name}"
        return program

    def converse(self, address: str) -> Conversation:
        """A connection to the webhook through the tunnel."""
        sock = through_tunnel(self.workshop.unix_socket, address, self.site.pod_port)
        return Conversation(sock, self.papers.tls_to_webhook())

    def call(self, address: str, labels: dict[str, str]) -> dict[str, Any]:
        with self.converse(address) as conversation:
            return conversation.review(labels)

    def carrier(self, response: dict[str, Any]) -> Node | None:
        """The node whose agent made the connection, as the webhook saw it; unknown on loopback."""
        return self.site.node_seen_as(response["auditAnnotations"]["seen-from"])

    def _start(self, name: str, place: Place, argv: Sequence[str]) -> Program:
        return self.workshop.programs.start(name, place, argv)

    def _wait(self, program: Program, condition: Callable[[], bool], what: str) -> None:
        def settled() -> bool:
            return program.exit_code is not None or condition()

        in_time = self.steps.wait_until(settled, what, START_SECONDS)
        if program.exit_code is not None:
            raise StepFailed(f"{program.name} ended at once, exit code {program.exit_code}", program.name)
        if not in_time:
            raise StepFailed(f"waited {START_SECONDS:.0f} s in vain for {what}", program.name)

    def _webhook_answers(self) -> bool:
        """All its addresses, from where the agents will stand."""
        place, port = self.site.nodes[0].place, self.site.pod_port
        try:
            for address in self.site.pod_addresses:
                with Conversation(directly(place, address, port), self.papers.tls_to_webhook()) as direct:
                    direct.review({})
        except HopFailed:
            return False
        return True

    def _get(self, place: Place, port: int, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.sock = place.connect("127.0.0.1", port, timeout=2.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def pod_endpoints(self) -> str:
        return " and ".join(endpoint(address, self.site.pod_port) for address in self.site.pod_addresses)


def _listens(place: Place, port: int) -> bool:
    try:
        place.connect("127.0.0.1", port, timeout=1.0).close()
    except OSError:
        return False
    return True


def agent_name(node: Node) -> str:
    return f"proxy-agent-{node.name}"
