"""The texts around the steps: the opening, the figures, what to try by hand, the last line."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bootbridge.demo.calls import WEBHOOK_NAME
from bootbridge.demo.latency import Latency
from bootbridge.demo.site import endpoint
from bootbridge.demo.steps import Screen, Step

if TYPE_CHECKING:
    from bootbridge.demo.scenario import Story

DESCRIPTION = """\
See the tunnel work on this machine; neither Go nor Kubernetes is needed.

Starts one proxy-server, two proxy-agents and an HTTPS admission webhook, then calls the
webhook as a kube-apiserver does: CONNECT over a unix socket, TLS, POST of an
AdmissionReview. One agent is stopped on the way. Everything is removed at the end, also
after Ctrl-C or a failure.

As root, control plane, nodes and pod are network namespaces, cabled such that only the
tunnel leads from the control plane to the pod. The machine's own network is not touched.
Otherwise everything runs on loopback.
"""

EPILOG = """\
examples:
  sudo bootbridge demo          the whole story
  bootbridge demo               on loopback, without any privilege
  bootbridge demo --keep        look around with curl, then Ctrl-C
  bootbridge demo --json | jq .latency

Exit code 0: every step held and nothing is left behind. 1: a step failed.
128 + n: stopped by signal n. NO_COLOR=1 turns colours off.
"""

_PICTURE = """
  control plane                             two nodes            pod
  this demo ──unix socket──▶ proxy-server ◀──mTLS── proxy-agent ──HTTPS──▶ webhook
"""


def opening(screen: Screen) -> str:
    title = screen.paint("strong", "Bootbridge demo: calling an admission webhook through the tunnel")
    return f"\n{title}\n{_PICTURE}"


def latency_table(latencies: Sequence[Latency], screen: Screen) -> str:
    head = f"{'Latency of one webhook call':<44}{'p50':>12}{'p99':>12}"
    lines = ["", screen.paint("strong", head)]
    for connection in dict.fromkeys(latency.connection for latency in latencies):
        for latency in (latency for latency in latencies if latency.connection == connection):
            what = f"  {connection}, {latency.way}"
            lines.append(f"{what:<44}{latency.p50_ms:>9.2f} ms{latency.p99_ms:>9.2f} ms")
    return "\n".join([*lines, ""])


def how_to_try(story: Story, relay_port: int, screen: Screen) -> str:
    """Commands to paste into another terminal."""
    site, directory = story.site, story.workshop.directory
    url = f"https://{WEBHOOK_NAME}:{site.pod_port}/validate"
    target = f"{WEBHOOK_NAME}:{site.pod_port}:{endpoint(site.pod_addresses[0], site.pod_port)}"
    metrics = ["curl", "-s", f"http://127.0.0.1:{site.health_port}/metrics"]
    return "\n".join(
        [
            "",
            screen.paint("strong", "It keeps running. In another terminal:"),
            "",
            "  # ask the webhook through the tunnel",
            f"  curl --proxy http://127.0.0.1:{relay_port} --connect-to {target} \\",
            f"    --cacert {directory}/webhook-ca.crt --data @{directory}/review.json \\",
            f"    {url}",
            "",
            "  # what the proxy-server counts",
            f"  {' '.join(site.control_plane.command(metrics))}",
            "",
            "  # what the programs say",
            f"  tail {directory}/*.log",
            "",
            "Ctrl-C ends it and removes everything.",
            "",
        ]
    )


def verdict(steps: Sequence[Step], exit_code: int, screen: Screen) -> str:
    if exit_code > 128:
        return f"\n{screen.mark(False)} Stopped by {signal.Signals(exit_code - 128).name}.\n"
    failed = [step for step in steps if not step.ok]
    if not failed:
        return f"\n{screen.mark(True)} All {len(steps)} steps held.\n"
    return "\n".join(
        [
            "",
            *(f"{screen.mark(False)} Step {step.number}, {step.title}: {step.detail}" for step in failed),
            "",
        ]
    )
