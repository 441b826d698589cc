"""The texts around the steps: help, title, latency table, commands to try, and summary."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bootbridge.common.progress import Terminal
from bootbridge.demo.calls import WEBHOOK_NAME
from bootbridge.demo.environment import endpoint
from bootbridge.demo.latency import Latency
from bootbridge.demo.steps import DemoStep

if TYPE_CHECKING:
    from bootbridge.demo.scenario import DemoScenario

_DIAGRAM = """
  control plane                             two nodes            pod
  this demo ──unix socket──▶ proxy-server ◀──mTLS── proxy-agent ──HTTPS──▶ webhook
"""


def title(terminal: Terminal) -> str:
    text = terminal.paint("strong", "Bootbridge demo: calling an admission webhook through the tunnel")
    return f"\n{text}\n{_DIAGRAM}"


def latency_table(latencies: Sequence[Latency], terminal: Terminal) -> str:
    head = f"{'Latency of one webhook call':<44}{'p50':>12}{'p99':>12}"
    lines = ["", terminal.paint("strong", head)]
    for connection in dict.fromkeys(latency.connection for latency in latencies):
        for latency in (latency for latency in latencies if latency.connection == connection):
            what = f"  {connection}, {latency.path}"
            lines.append(f"{what:<44}{latency.p50_ms:>9.2f} ms{latency.p99_ms:>9.2f} ms")
    return "\n".join([*lines, ""])


def commands_to_try(scenario: DemoScenario, port: int, terminal: Terminal) -> str:
    """Returns commands to paste into another terminal."""
    environment, directory = scenario.environment, scenario.workspace.directory
    webhook = f"{WEBHOOK_NAME}:{environment.pod_port}"
    pod = endpoint(environment.pod_addresses[0], environment.pod_port)
    metrics = ["curl", "-s", f"http://127.0.0.1:{environment.health_port}/metrics"]
    return "\n".join(
        [
            "",
            terminal.paint("strong", "The demo keeps running. In another terminal:"),
            "",
            "  # call the webhook through the tunnel",
            f"  curl --proxy http://127.0.0.1:{port} --connect-to {webhook}:{pod} \\",
            f"    --cacert {directory}/webhook-ca.crt --data @{directory}/review.json \\",
            f"    https://{webhook}/validate",
            "",
            "  # metrics of the proxy-server",
            f"  {' '.join(environment.control_plane.command(metrics))}",
            "",
            "  # logs of all programs",
            f"  tail {directory}/*.log",
            "",
            "Ctrl-C stops and removes everything.",
            "",
        ]
    )


def summary(steps: Sequence[DemoStep], exit_code: int, terminal: Terminal) -> str:
    if exit_code > 128:
        return f"\n{terminal.mark(False)} Stopped by {signal.Signals(exit_code - 128).name}.\n"
    failed = [step for step in steps if not step.ok]
    if not failed:
        return f"\n{terminal.mark(True)} All {len(steps)} steps succeeded.\n"
    lines = [f"{terminal.mark(False)} Step {step.number}, {step.title}: {step.detail}" for step in failed]
    return "\n".join(["", *lines, ""])
