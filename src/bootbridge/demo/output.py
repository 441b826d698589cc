"""The texts around the steps: title, latency table, commands to try, and summary."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bootbridge.common.terminal.figures import duration
from bootbridge.common.terminal.terminal import Mark, Styled, Terminal
from bootbridge.demo.calls import WEBHOOK_NAME
from bootbridge.demo.latency import Latency
from bootbridge.demo.steps import DemoStep

if TYPE_CHECKING:
    from bootbridge.demo.scenario import DemoScenario

_TITLE = "Bootbridge demo: calling an admission webhook through the tunnel"
_DIAGRAM = """
  control plane                                     two nodes              pod
  this demo ──unix socket──▶ proxy-server ◀──mTLS── proxy-agent ──HTTPS──▶ webhook
"""
_NARROW_DIAGRAM = """
  control plane   this demo
                      │ unix socket
                      ▼
                  proxy-server
                      ▲
                      │ mTLS: the agents dial out
  two nodes       proxy-agent
                      │ HTTPS
                      ▼
  pod             webhook
"""
_PLAIN = str.maketrans("─│▶◀▼▲", "-|><v^")
_NEXT_STEPS = (
    ("bootbridge demo --keep", "keep it running, and call the webhook with curl"),
    ("bootbridge lab demo", "the same in a real Kubernetes (as root, after make kubernetes)"),
    ("bootbridge up --help", "install the tunnel on a bootstrap node"),
)


def show_title(terminal: Terminal) -> None:
    terminal.line()
    terminal.line(Styled(_TITLE, "strong"))
    columns = terminal.columns
    fits = not columns or all(len(line) <= columns for line in _DIAGRAM.splitlines())
    diagram = _DIAGRAM if fits else _NARROW_DIAGRAM
    for line in (diagram if terminal.unicode else diagram.translate(_PLAIN)).splitlines():
        terminal.verbatim(line)
    terminal.line()


def show_latencies(latencies: Sequence[Latency], terminal: Terminal) -> None:
    """Shows the table; both lines of one kind of connection stand together."""
    kinds = dict.fromkeys(latency.connection for latency in latencies)
    rows = [
        (f"{each.connection}, {each.path}", f"{each.p50_ms:.2f} ms", f"{each.p99_ms:.2f} ms")
        for kind in kinds
        for each in latencies
        if each.connection == kind
    ]
    terminal.line()
    terminal.table(rows, head=("Latency of one webhook call", "p50", "p99"), right=(1, 2), indent=2)
    terminal.line()


def show_commands_to_try(scenario: DemoScenario, port: int, terminal: Terminal) -> None:
    """Shows commands to paste into another terminal."""
    environment, directory = scenario.environment, scenario.workspace.directory
    webhook = f"{WEBHOOK_NAME}:{environment.pod_port}"
    metrics = ["curl", "-s", f"http://127.0.0.1:{environment.health_port}/metrics"]
    commands = {
        "call the webhook through the tunnel": [
            f"curl --connect-to {webhook}:127.0.0.1:{port} \\",
            f"  --cacert {directory}/webhook-ca.crt --data @{directory}/review.json \\",
            f"  https://{webhook}/validate",
        ],
        "metrics of the proxy-server": [" ".join(environment.control_plane.command(metrics))],
        "logs of all programs": [f"tail {directory}/*.log"],
    }
    terminal.line()
    terminal.line(Styled("The demo keeps running. In another terminal:", "strong"))
    for what, lines in commands.items():
        terminal.line()
        terminal.line(Styled(f"# {what}", "dim"), indent=2)
        for line in lines:
            terminal.verbatim(line, "command", indent=2)
    terminal.line()
    terminal.line("Ctrl-C stops and removes everything.")
    terminal.line()


def show_summary(scenario: DemoScenario, exit_code: int, seconds: float, terminal: Terminal) -> None:
    steps = scenario.steps.all
    if exit_code > 128:
        terminal.summary(Mark.BAD, f"Stopped by {signal.Signals(exit_code - 128).name}.")
    elif failed := [step for step in steps if not step.ok]:
        first = failed[0]
        terminal.summary(Mark.BAD, _failure(first), details=map(_failure, failed[1:]))
    else:
        sentence = f"All {len(steps)} steps succeeded in {duration(seconds)}."
        terminal.summary(Mark.GOOD, sentence, details=_findings(scenario), next_steps=_NEXT_STEPS)
    terminal.line()


def _failure(step: DemoStep) -> str:
    return f"Step {step.number}, {step.title}: {step.detail}"


def _findings(scenario: DemoScenario) -> list[str]:
    """Returns what the run has shown, with its figures."""
    found = []
    if not scenario.loopback_reason:
        found.append("Without the tunnel the control plane cannot reach the pod; through it, it can.")
    found.append("An agent stopped during a call: the call completed, and later calls used the other agent.")
    through, direct = (
        next(
            (each.p50_ms for each in scenario.latencies if start in each.path and "open" in each.connection),
            None,
        )
        for start in ("through", "direct")
    )
    if through is not None and direct is not None:
        text = f"On an open connection the tunnel adds {max(through - direct, 0):.2f} ms (p50) to a call."
        found.append(text)
    return found
