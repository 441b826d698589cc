"""The demo's steps: start everything, call the webhook, stop and restart an agent, measure latency."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bootbridge.demo import latency
from bootbridge.demo.calls import CallFailed, admission_review, directly, through_tunnel
from bootbridge.demo.certificates import issue_certificates
from bootbridge.demo.environment import DemoEnvironment, DemoNode, create_environment, endpoint
from bootbridge.demo.latency import Latency
from bootbridge.demo.programs import DemoPrograms
from bootbridge.demo.steps import StepFailed, Steps
from bootbridge.demo.workspace import DemoWorkspace

DRAIN_SECONDS = 10.0
DIRECT_CALL_SECONDS = 1.0
SLOW_CALL_MS = 400
CALLS_AFTER_STOP = 10
CALLS_MEASURED = 200

ALLOWED_LABELS, DENIED_LABELS = {"app": "web"}, {"app": "web", "deny": "true"}


@dataclass
class DemoScenario:
    steps: Steps
    workspace: DemoWorkspace
    loopback_reason: str = ""
    latencies: list[Latency] = field(default_factory=list)
    programs: DemoPrograms = field(init=False)

    def run(self) -> None:
        """Runs all steps; the first that fails ends the scenario with its exception."""
        environment = self.create_network()
        self.create_certificates(environment)
        self.start_webhook()
        self.start_server()
        self.start_agents()
        self.call_directly()
        self.call_allowed_pod()
        self.call_denied_pod()
        self.call_over_ipv6()
        stopped, remaining = self.stop_agent()
        self.call_after_stop(stopped, remaining)
        self.restart_agent(stopped)
        self.measure_latency()

    @property
    def environment(self) -> DemoEnvironment:
        return self.programs.environment

    # --- start

    def create_network(self) -> DemoEnvironment:
        with self.steps.step("Network") as step:
            environment, self.loopback_reason = create_environment(
                self.workspace.namespaces, loopback_reason=self.loopback_reason
            )
            if environment.isolated:
                step.detail = "4 namespaces (control plane, 2 nodes, pod); no route from control plane to pod"
            else:
                step.detail = f"loopback ({self.loopback_reason}): nothing separates the caller from the pod"
        return environment

    def create_certificates(self, environment: DemoEnvironment) -> None:
        with self.steps.step("Certificates") as step:
            names = [node.name for node in environment.nodes]
            certificates = issue_certificates(self.workspace.directory, environment.server_hosts, names)
            self.programs = DemoPrograms(self.steps, self.workspace, environment, certificates)
            step.detail = "ECDSA P-256, one authority for the tunnel and one for the webhook"

    def start_webhook(self) -> None:
        with self.steps.step("Webhook") as step:
            self.programs.start_webhook()
            step.detail = f"HTTPS on {self.programs.pod_endpoints()}"

    def start_server(self) -> None:
        with self.steps.step("proxy-server") as step:
            self.programs.start_server()
            port = self.environment.agent_port
            step.detail = f"listens on {self.workspace.unix_socket}, and on port {port} for agents (mTLS)"

    def start_agents(self) -> None:
        with self.steps.step("proxy-agents") as step:
            for node in self.environment.nodes:
                self.programs.start_agent(node)
            self.programs.wait_for_agents()
            port = self.environment.agent_port
            dials = [f"{node.name} to {endpoint(node.server_host, port)}" for node in self.environment.nodes]
            step.detail = f"both connected: {', '.join(dials)}"

    # --- call

    def call_directly(self) -> None:
        with self.steps.step("Direct call") as step:
            target = (
                self.environment.control_plane,
                self.environment.pod_addresses[0],
                self.environment.pod_port,
            )
            try:
                directly(*target, timeout=DIRECT_CALL_SECONDS).close()
            except CallFailed as failure:
                if not self.environment.isolated:
                    raise
                step.detail = f"fails, as expected: {failure}"
                return
            if self.environment.isolated:
                raise StepFailed("the control plane reached the pod without the tunnel")
            step.detail = "succeeds too, because everything runs on loopback"

    def call_allowed_pod(self) -> None:
        with self.steps.step("Call through tunnel") as step:
            response = self._review(self.environment.pod_addresses[0], ALLOWED_LABELS, allowed=True)
            step.detail = f"pod with app=web: allowed{self._via(response)}"

    def call_denied_pod(self) -> None:
        with self.steps.step("Call through tunnel") as step:
            response = self._review(self.environment.pod_addresses[0], DENIED_LABELS, allowed=False)
            message = response["status"]["message"]
            step.detail = f'pod with deny=true: denied{self._via(response)}, "{message}"'

    def call_over_ipv6(self) -> None:
        with self.steps.step("Call over IPv6") as step:
            address = next((address for address in self.environment.pod_addresses if ":" in address), "")
            if not address:
                step.detail = "skipped: this machine has no IPv6"
                return
            response = self._review(address, ALLOWED_LABELS, allowed=True)
            step.detail = f"{endpoint(address, self.environment.pod_port)}: allowed{self._via(response)}"

    # --- stop and restart an agent

    def stop_agent(self) -> tuple[DemoNode, DemoNode]:
        """Sends SIGTERM to the agent of a running call; returns its node and the other one."""
        with self.steps.step("Stop an agent") as step:
            stopped = self._stop_during_call()
            self._wait_for_exit(stopped)
            what = "its running call" if self.environment.isolated else "a running call"
            step.detail = f"SIGTERM to the agent on {stopped.name}: {what} completed, then the agent exited"
        return stopped, next(node for node in self.environment.nodes if node is not stopped)

    def call_after_stop(self, stopped: DemoNode, remaining: DemoNode) -> None:
        with self.steps.step("Calls after that") as step:
            for _ in range(CALLS_AFTER_STOP):
                response = self._review(self.environment.pod_addresses[0], ALLOWED_LABELS, allowed=True)
                if self.programs.node_of(response) is stopped:
                    raise StepFailed(
                        f"call went through {stopped.name}, whose agent has exited", "proxy-server"
                    )
            step.detail = f"{CALLS_AFTER_STOP} of {CALLS_AFTER_STOP} succeeded, through {remaining.name}"

    def restart_agent(self, node: DemoNode) -> None:
        with self.steps.step("Restart the agent") as step:
            self.programs.start_agent(node)
            self.programs.wait_for_agents()
            step.detail = f"the agent on {node.name} is connected again"

    # --- measure

    def measure_latency(self) -> None:
        with self.steps.step("Latency") as step:
            environment = self.environment
            host, port, node = (
                environment.pod_addresses[0],
                environment.pod_port,
                environment.nodes[0].network,
            )
            paths = {
                "through the tunnel": partial(through_tunnel, self.workspace.unix_socket, host, port),
                f"direct from {node.label}": partial(directly, node, host, port),
            }
            kinds = {
                "new connection": latency.with_new_connections,
                "open connection": latency.with_one_connection,
            }
            tls = self.programs.certificates.webhook_client_context()
            for kind, measure in kinds.items():
                for path, dial in paths.items():
                    times = measure(dial, tls, CALLS_MEASURED, partial(self.steps.waiting, "measuring"))
                    self.latencies.append(Latency.of(path, kind, times))
            step.detail = f"{CALLS_MEASURED} sequential calls of each kind"

    # --- keep running

    def open_local_port(self) -> int:
        """Forwards a port for curl and writes a review to send; returns the port."""
        with self.steps.step("Local port") as step:
            port = self.programs.start_forward()
            review = json.dumps(admission_review(DENIED_LABELS), indent=2)
            (self.workspace.directory / "review.json").write_text(review)
            step.detail = f"127.0.0.1:{port} is forwarded to the pod, through the tunnel"
        return port

    # --- shared

    def _review(self, address: str, labels: dict[str, str], *, allowed: bool) -> dict[str, Any]:
        return _checked(self.programs.call(address, labels), allowed)

    def _via(self, response: dict[str, Any]) -> str:
        node = self.programs.node_of(response)
        return f" through {node.name}" if node else ""

    def _stop_during_call(self) -> DemoNode:
        address = self.environment.pod_addresses[0]
        with self.programs.connect(address) as slow:
            node = self.programs.node_of(slow.review(ALLOWED_LABELS)) or self.environment.nodes[0]
            slow.send(ALLOWED_LABELS, wait_ms=SLOW_CALL_MS)
            self.programs.agent_on(node).terminate()
            self._review(address, ALLOWED_LABELS, allowed=True)
            _checked(slow.receive(), allowed=True)
        return node

    def _wait_for_exit(self, node: DemoNode) -> None:
        agent = self.programs.agent_on(node)
        what = f"{agent.name} to exit"
        if not self.steps.wait_until(lambda: agent.exit_code is not None, what, DRAIN_SECONDS):
            problem = f"{agent.name} still runs {DRAIN_SECONDS:.0f}s after SIGTERM, without connections"
            raise StepFailed(problem, agent.name)
        if agent.exit_code:
            raise StepFailed(f"{agent.name} exited with code {agent.exit_code}", agent.name)


def _checked(response: dict[str, Any], allowed: bool) -> dict[str, Any]:
    if response["allowed"] is not allowed:
        result = "allowed" if response["allowed"] else "denied"
        raise StepFailed(f"unexpected result: the webhook {result} the pod", "webhook")
    return response
