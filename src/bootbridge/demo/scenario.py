"""The story, step by step: from nothing to a webhook call, through the loss of an agent, to figures."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bootbridge.demo import certificates, latency, site
from bootbridge.demo.calls import HopFailed, admission_review, directly, through_tunnel
from bootbridge.demo.certificate_files import Workshop
from bootbridge.demo.latency import Latency
from bootbridge.demo.site import Node, Site, endpoint
from bootbridge.demo.stage import Stage
from bootbridge.demo.steps import StepFailed, Steps

DRAIN_SECONDS = 10.0
DIRECT_CALL_SECONDS = 1.0
SLOW_CALL_MS = 400
CALLS_AFTER_LOSS = 10
CALLS_MEASURED = 200

FRIENDLY, UNWELCOME = {"app": "web"}, {"app": "web", "deny": "true"}


@dataclass
class Story:
    """The steps, in the order in which `tell` takes them."""

    steps: Steps
    workshop: Workshop
    loopback_because: str = ""
    latencies: list[Latency] = field(default_factory=list)
    stage: Stage = field(init=False)

    def tell(self) -> None:
        layout = self.lay_out_network()
        self.make_certificates(layout)
        self.start_webhook()
        self.start_server()
        self.start_agents()
        self.call_directly()
        self.call_for_a_friendly_pod()
        self.call_for_an_unwelcome_pod()
        self.call_over_ipv6()
        gone, left = self.stop_an_agent()
        self.call_without(gone, left)
        self.bring_back(gone)
        self.measure()

    @property
    def site(self) -> Site:
        return self.stage.site

    # Setting up

    def lay_out_network(self) -> Site:
        with self.steps.step("Network") as step:
            layout, self.loopback_because = site.choose(
                self.workshop.namespaces, loopback_because=self.loopback_because
            )
            if layout.isolated:
                step.detail = "4 namespaces: control plane – nodes – pod; no route from control plane to pod"
            else:
                step.detail = f"all on loopback ({self.loopback_because}): this shows only the tunnel itself"
        return layout

    def make_certificates(self, layout: Site) -> None:
        with self.steps.step("Certificates") as step:
            names = [node.name for node in layout.nodes]
            papers = certificates.issue(self.workshop.directory, layout.server_hosts, names)
            self.stage = Stage(self.steps, self.workshop, layout, papers)
            step.detail = "ECDSA P-256, from two authorities: the tunnel's and the webhook's"

    def start_webhook(self) -> None:
        with self.steps.step("Webhook") as step:
            self.stage.start_webhook()
            step.detail = f"HTTPS on {self.stage.pod_endpoints()}"

    def start_server(self) -> None:
        with self.steps.step("proxy-server") as step:
            self.stage.start_server()
            step.detail = (
                f"CONNECT on {self.workshop.unix_socket}, agents on port {self.site.agent_port} (mTLS)"
            )

    def start_agents(self) -> None:
        with self.steps.step("proxy-agents") as step:
            for node in self.site.nodes:
                self.stage.start_agent(node)
            self.stage.wait_for_agents()
            ways = [
                f"{node.name} to {endpoint(node.server_host, self.site.agent_port)}"
                for node in self.site.nodes
            ]
            step.detail = f"both have dialled out: {', '.join(ways)}"

    # Calling

    def call_directly(self) -> None:
        with self.steps.step("Direct call") as step:
            target = (self.site.control_plane, self.site.pod_addresses[0], self.site.pod_port)
            try:
                directly(*target, timeout=DIRECT_CALL_SECONDS).close()
            except HopFailed as failure:
                if not self.site.isolated:
                    raise
                step.detail = f"fails, as it should: {failure}"
                return
            if self.site.isolated:
                raise StepFailed("the control plane reached the pod without the tunnel, so nothing is proved")
            step.detail = "works as well: on loopback nothing keeps caller and webhook apart"

    def call_for_a_friendly_pod(self) -> None:
        with self.steps.step("Tunnelled call") as step:
            response = self._review(self.site.pod_addresses[0], FRIENDLY, allowed=True)
            step.detail = f"app=web: allowed{self._way_of(response)}"

    def call_for_an_unwelcome_pod(self) -> None:
        with self.steps.step("Tunnelled call") as step:
            response = self._review(self.site.pod_addresses[0], UNWELCOME, allowed=False)
            words = response["status"]["message"]
            step.detail = f'deny=true: denied{self._way_of(response)} with "{words}"'

    def call_over_ipv6(self) -> None:
        with self.steps.step("Tunnelled call, IPv6") as step:
            address = next((address for address in self.site.pod_addresses if ":" in address), "")
            if not address:
                step.detail = "not tried: this machine has no IPv6"
                return
            response = self._review(address, FRIENDLY, allowed=True)
            step.detail = f"{endpoint(address, self.site.pod_port)}: allowed{self._way_of(response)}"

    # Losing an agent

    def stop_an_agent(self) -> tuple[Node, Node]:
        """SIGTERM for the agent that carries a call; the result is who went and who is left."""
        with self.steps.step("Stop an agent") as step:
            gone = self._stop_while_calling()
            self._wait_until_left(gone)
            carried = "which carried a call" if self.site.isolated else "during a call"
            step.detail = f"SIGTERM for {gone.name}, {carried}: the call was answered, then the agent left"
        return gone, next(node for node in self.site.nodes if node is not gone)

    def call_without(self, gone: Node, left: Node) -> None:
        with self.steps.step("Calls after that") as step:
            for _ in range(CALLS_AFTER_LOSS):
                response = self._review(self.site.pod_addresses[0], FRIENDLY, allowed=True)
                if self.stage.carrier(response) is gone:
                    raise StepFailed(f"a call came through {gone.name}, whose agent has left", "proxy-server")
            step.detail = f"{CALLS_AFTER_LOSS} of {CALLS_AFTER_LOSS} answered, through {left.name}"

    def bring_back(self, gone: Node) -> None:
        with self.steps.step("Agent returns") as step:
            self.stage.start_agent(gone)
            self.stage.wait_for_agents()
            step.detail = f"{gone.name} is connected again"

    # Figures

    def measure(self) -> None:
        with self.steps.step("Latency") as step:
            host, port, node = self.site.pod_addresses[0], self.site.pod_port, self.site.nodes[0].place
            ways = {
                "through the tunnel": partial(through_tunnel, self.workshop.unix_socket, host, port),
                f"direct from {node.label}": partial(directly, node, host, port),
            }
            kinds = {
                "new connection": latency.with_new_connections,
                "kept connection": latency.with_one_connection,
            }
            tls, tick = self.stage.papers.tls_to_webhook(), partial(self.steps.waiting, "measuring")
            for kind, measured in kinds.items():
                for way, dial in ways.items():
                    times = measured(dial, tls, CALLS_MEASURED, tick)
                    self.latencies.append(Latency.of(way, kind, times))
            step.detail = f"{CALLS_MEASURED} calls of each kind, one after the other"

    # Staying

    def open_for_visitors(self) -> int:
        """A port for curl and a review to send; the result is the port."""
        with self.steps.step("Open for visitors") as step:
            port = self.stage.start_relay()
            review = json.dumps(admission_review(UNWELCOME), indent=2)
            (self.workshop.directory / "review.json").write_text(review)
            step.detail = f"127.0.0.1:{port} leads to the proxy-server's unix socket"
        return port

    # What several steps do

    def _review(self, address: str, labels: dict[str, str], *, allowed: bool) -> dict[str, Any]:
        return _checked(self.stage.call(address, labels), allowed)

    def _way_of(self, response: dict[str, Any]) -> str:
        node = self.stage.carrier(response)
        return f" through {node.name}" if node else ""

    def _stop_while_calling(self) -> Node:
        address = self.site.pod_addresses[0]
        with self.stage.converse(address) as slow:
            gone = self.stage.carrier(slow.review(FRIENDLY)) or self.site.nodes[0]
            slow.send(FRIENDLY, wait_ms=SLOW_CALL_MS)
            self.stage.agent_on(gone).terminate()
            self._review(address, FRIENDLY, allowed=True)
            _checked(slow.answer(), allowed=True)
        return gone

    def _wait_until_left(self, gone: Node) -> None:
        agent = self.stage.agent_on(gone)
        what = f"{agent.name} to leave"
        if not self.steps.wait_until(lambda: agent.exit_code is not None, what, DRAIN_SECONDS):
            raise StepFailed(
                f"{agent.name} is idle but still there {DRAIN_SECONDS:.0f} s after SIGTERM", agent.name
            )
        if agent.exit_code:
            raise StepFailed(f"{agent.name} ended with exit code {agent.exit_code}", agent.name)


def _checked(response: dict[str, Any], allowed: bool) -> dict[str, Any]:
    if response["allowed"] is not allowed:
        said = "allowed" if response["allowed"] else "denied"
        raise StepFailed(f"the webhook {said} this pod, which is not its rule", "webhook")
    return response
