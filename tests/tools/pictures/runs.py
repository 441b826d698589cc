"""The runs that pictures are made from. Each yields pictures of what happened: file names and contents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.tools.pictures.terminal_session import TerminalSession
from tests.tools.pictures.terminal_svg import render

COLUMNS = 112
Pictures = Iterator[tuple[str, bytes]]


def demo(folder: Path) -> Pictures:
    """`bootbridge demo`, in network namespaces."""
    command = "bootbridge demo"
    with TerminalSession(folder, columns=COLUMNS) as terminal:
        terminal.run(command)
        yield "demo.svg", _svg(terminal.output(), command)


def lab(folder: Path) -> Pictures:
    """`bootbridge up` in a real cluster; then the agents' port is filtered, and doctor finds it."""
    from bootbridge.lab.images import TUNNEL_IMAGE
    from tests.support.lab import Cluster

    with Cluster.up(folder / "lab") as cluster:
        cluster.start_workloads()
        on_bootstrap = cluster.lab.namespaces("bootstrap")
        with TerminalSession(folder, columns=COLUMNS, where=on_bootstrap.command) as terminal:
            command = f"bootbridge up --image {TUNNEL_IMAGE}"
            terminal.run(command, seconds=600)
            yield "up.svg", _svg(terminal.output(), command)
        on_bootstrap.run_checked("nft", "-f", "-", input=FILTER_AGENT_PORT)
        inside = f"--namespace={cluster.plan.namespace}"
        cluster.kubectl("delete", "pods", "--all", inside, "--grace-period=1", seconds=120)
        agents = ("logs", inside, f"--selector=app={cluster.plan.daemonset_name}", "--tail=-1")
        cluster.until(
            lambda: "server not reached" in cluster.kubectl(*agents, check=False).stdout,
            "the new agents have tried to connect",
        )
        with TerminalSession(folder, columns=COLUMNS, where=on_bootstrap.command) as terminal:
            command = "bootbridge doctor"
            terminal.run(command)
            yield "doctor.svg", _svg(terminal.output(), command)


# A firewall that drops packets to the agents' port. The rule goes away with the lab's node.
FILTER_AGENT_PORT = b"""
table inet firewall {
  chain input {
    type filter hook input priority 0;
    iifname != "lo" tcp dport 8091 drop
  }
}
"""


def tunnel(folder: Path) -> Pictures:
    """A server with three agents under load: its page, and `bootbridge top`."""
    from tests.tools.pictures.loaded_tunnel import loaded_tunnel

    with loaded_tunnel(folder) as running:
        with running.entered():
            terminal = TerminalSession(folder, columns=COLUMNS, lines=36)
        with terminal:
            yield "top.svg", _svg(terminal.output(), "top")


def _svg(screen: str, command: str) -> bytes:
    return render(screen, title=command, columns=COLUMNS).encode()
