"""The story, step by step: from nothing to a webhook call, through the loss of an agent, to figures."""

from __future__ import annotations

import http.client
import re
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bootbridge.demo import certificates, latency, site
from bootbridge.demo.calls import Conversation, HopFailed, directly, through_tunnel
from bootbridge.demo.certificates import Papers
from bootbridge.demo.latency import Latency
from bootbridge.demo.network import NamespacesRefused, ipv6_works, why_no_namespaces
from bootbridge.demo.processes import Program
from bootbridge.demo.site import Node, Site
from bootbridge.demo.steps import StepFailed, Steps
from bootbridge.demo.workshop import Workshop

START_SECONDS = 20.0
DRAIN_SECONDS = 10.0
DIRECT_CALL_SECONDS = 1.0
SLOW_CALL_MS = 400
CALLS_AFTER_LOSS = 10
CALLS_MEASURED = 200

FRIENDLY, UNWELCOME = {"app": "web"}, {"app": "web", "deny": "true"}
_READY_AGENTS = re.compile(
    rb'^konnectivity_network_proxy_server_ready_backends\{proxy_strategy="default"\} (\d+)', re.MULTILINE
)


@dataclass
class Story:
    """The steps, in the order in which `tell` takes them; each leaves what the next ones need."""

    steps: Steps
    workshop: Workshop
    want_namespaces: bool = True
    loopback_because: str = ""
    latencies: list[Latency] = field(default_factory=list)
    site: Site = field(init=False)
    papers: Papers = field(init=False)

    def tell(self) -> None:
        self.lay_out_network()
        self.make_certificates()
        self.start_webhook()
        self.start_server()
        self.start_agents()
        self.call_directly()
        self.call_allowed()
        self.call_denied()
        self.call_over_ipv6()
        survivor = self.stop_an_agent()
        self.call_after_loss(survivor)
        self.bring_agent_back(survivor)
        self.measure()

    # Setting up

    def lay_out_network(self) -> None:
        with self.steps.step("Network") as step:
            self.site = self._choose_site()
            if self.site.isolated:
                step.detail = "4 namespaces; the control plane is cabled to node1 and node2, not to the pod"
            else:
                step.detail = f"everything on loopback ({self.loopback_because}): this shows the tunnel itself"

    def make_certificates(self) -> None:
        with self.steps.step("Certificates") as step:
            names = [node.name for node in self.site.nodes]
            self.papers = certificates.issue(self.workshop.directory, self.site.server_hosts, names)
            step.detail = "ECDSA P-256: two authorities (tunnel, webhook), proxy-server, 2 agents, webhook"

    def start_webhook(self) -> None:
        with self.steps.step("Webhook") as step:
            cert, key = self.papers.webhook
            listen = [f"--listen={address}" for address in self.site.pod_addresses]
            flags = [f"--port={self.site.pod_port}", f"--cert={cert}", f"--key={key}"]
            program = self._start("webhook", "bootbridge.demo.webhook", self.site.pod, [*listen, *flags])
            self._await(program, self._node_reaches_webhook, "the webhook to answer node1")
            step.detail = f"HTTPS on {self._pod()}, in the {self.site.pod.label}"

    def start_server(self) -> None:
        with self.steps.step("proxy-server") as step:
            program = self._start("proxy-server", "bootbridge.cli.server", self.site.control_plane, self._server_flags())
            self._await(program, lambda: self._ready_agents() is not None, "the proxy-server to start")
            step.detail = f"CONNECT on {self.workshop.unix_socket}, agents on port {self.site.agent_port} (mTLS)"

    def start_agents(self) -> None:
        with self.steps.step("proxy-agents") as step:
            for node in self.site.nodes:
                self._start_agent(node)
            self._await_agents(len(self.site.nodes))
            ways = [f"{node.name} dialled out to {_endpoint(node.server_host, self.site.agent_port)}" for node in self.site.nodes]
            step.detail = "; ".join(ways)

    # Calling

    def call_directly(self) -> None:
        with self.steps.step("Direct call") as step:
            target = (self.site.control_plane, self.site.pod_addresses[0], self.site.pod_port)
            try:
                directly(*target, timeout=DIRECT_CALL_SECONDS).close()
            except HopFailed as failure:
                if not self.site.isolated:
                    raise
                step.detail = f"fails, as it must without a tunnel: {failure}"
                return
            if self.site.isolated:
                raise StepFailed("the control plane reached the pod without the tunnel: the demo proves nothing")
            step.detail = "works too: on loopback nothing keeps caller and pod apart"

    def call_allowed(self) -> None:
        with self.steps.step("Call, friendly pod") as step:
            response = self._call(self.site.pod_addresses[0], FRIENDLY)
            _expect(response, allowed=True)
            step.detail = f"labels app=web: allowed{self._way(response)}"

    def call_denied(self) -> None:
        with self.steps.step("Call, unwelcome pod") as step:
            response = self._call(self.site.pod_addresses[0], UNWELCOME)
            _expect(response, allowed=False)
            words = response["status"]["message"]
            step.detail = f'label deny=true: denied{self._way(response)}, in the webhook\'s words "{words}"'

    def call_over_ipv6(self) -> None:
        with self.steps.step("Call, IPv6 pod") as step:
            address = next((address for address in self.site.pod_addresses if ":" in address), "")
            if not address:
                step.detail = "not tried: this machine has no IPv6"
                return
            response = self._call(address, FRIENDLY)
            _expect(response, allowed=True)
            step.detail = f"{_endpoint(address, self.site.pod_port)}: allowed{self._way(response)}"

    # Losing an agent

    def stop_an_agent(self) -> Node:
        """SIGTERM for the agent that carries a call; the result is the node that is left."""
        with self.steps.step("Stop an agent") as step, self._converse(self.site.pod_addresses[0]) as slow:
            carrier = self._carrier(slow.review(FRIENDLY))
            agent = self._agent_on(carrier)
            slow.send(FRIENDLY, wait_ms=SLOW_CALL_MS)
            agent.terminate()
            _expect(self._call(self.site.pod_addresses[0], FRIENDLY), allowed=True)
            _expect(slow.answer(), allowed=True)
            slow.close()
            if not self.steps.wait_until(lambda: agent.exit_code is not None, "the agent to leave", DRAIN_SECONDS):
                raise StepFailed(f"{agent.name} still runs {DRAIN_SECONDS:.0f} s after SIGTERM, idle", agent.name)
            if agent.exit_code:
                raise StepFailed(f"{agent.name} ended with exit code {agent.exit_code}", agent.name)
            step.detail = f"SIGTERM on {carrier.name} during a call: the call was finished, then the agent left"
        return next(node for node in self.site.nodes if node is not carrier)

    def call_after_loss(self, survivor: Node) -> None:
        with self.steps.step("Calls after that") as step:
            responses = [self._call(self.site.pod_addresses[0], FRIENDLY) for _ in range(CALLS_AFTER_LOSS)]
            for response in responses:
                _expect(response, allowed=True)
            ways = {self._carrier(response).name for response in responses} if self.site.isolated else set()
            if ways - {survivor.name}:
                raise StepFailed(f"calls went through {', '.join(sorted(ways))}, though only {survivor.name} is left")
            step.detail = f"{len(responses)} of {len(responses)} answered, all through {survivor.name}"

    def bring_agent_back(self, survivor: Node) -> None:
        with self.steps.step("Agent returns") as step:
            returning = next(node for node in self.site.nodes if node is not survivor)
            self._start_agent(returning)
            self._await_agents(len(self.site.nodes))
            step.detail = f"{returning.name} is connected again"

    # Figures

    def measure(self) -> None:
        with self.steps.step("Latency") as step:
            host, port = self.site.pod_addresses[0], self.site.pod_port
            node = self.site.nodes[0].place
            ways = {
                "through the tunnel": partial(through_tunnel, self.workshop.unix_socket, host, port),
                f"directly from {node.label}": partial(directly, node, host, port),
            }
            tls = self.papers.tls_to_webhook()
            kinds = {"new connection": latency.with_new_connections, "kept connection": latency.with_one_connection}
            tick = partial(self.steps.waiting, "measuring")
            self.latencies = [
                Latency.of(way, connection, measured(dial, tls, CALLS_MEASURED, tick))
                for connection, measured in kinds.items()
                for way, dial in ways.items()
            ]
            step.detail = f"{CALLS_MEASURED} calls of each kind, one after the other; see below"

    # What the steps share

    def _choose_site(self) -> Site:
        self.loopback_because = why_no_namespaces() if self.want_namespaces else "--no-root"
        for ipv6 in (True, False) if not self.loopback_because and ipv6_works() else (False,):
            if self.loopback_because:
                break
            try:
                return site.namespaced(self.workshop.namespaces, ipv6)
            except NamespacesRefused as refusal:
                self.workshop.namespaces.remove()
                if not ipv6:
                    self.loopback_because = f"no network namespaces here: {refusal}"
        return site.loopback(ipv6_works())
