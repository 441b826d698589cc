"""The status of a lab, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bootbridge.common.terminal.terminal import Cell, Mark, Terminal
from bootbridge.lab.components import Components
from bootbridge.lab.lab import Lab

NextSteps = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class LabStatus:
    document: dict[str, Any]
    is_up: bool

    def show(
        self, terminal: Terminal, complete: Callable[[NextSteps], NextSteps] = lambda steps: steps
    ) -> None:
        """`complete` adds to the commands to type next what they need to find this lab."""
        rows: list[tuple[Cell, ...]] = []
        for node in self.document["nodes"]:
            mark, state = (
                (Mark.GOOD, f"running, pid {node['pid']}") if node["pid"] else (Mark.BAD, "not running")
            )
            rows.append((mark, node["name"], ", ".join(node["addresses"]), state))
        ready = bool(self.document["apiServerReady"])
        rows.append((Mark.GOOD if ready else Mark.BAD, "API server", "", "ready" if ready else "not ready"))
        terminal.line(f"lab in {self.document['directory']}")
        terminal.table(rows)
        if self.is_up:
            steps = [
                ("bootbridge lab kubectl get nodes", ""),
                ("bootbridge lab tunnel", "install the tunnel"),
            ]
            terminal.summary(Mark.GOOD, "The lab is up.", next_steps=complete(steps))
        else:
            steps = [("bootbridge lab logs", "list the logs"), ("bootbridge lab down", "remove the lab")]
            terminal.summary(Mark.BAD, "The lab is not complete.", next_steps=complete(steps))


def status(lab: Lab, components: Components) -> LabStatus:
    running = {each.name: each.pid for each in lab.live_namespaces()}
    rows: list[dict[str, Any]] = [
        {
            "name": node.name,
            "pid": running.get(node.name),
            "addresses": [str(each) for each in node.addresses],
        }
        for node in lab.layout.all_nodes
    ]
    ready = lab.layout.first.name in running and lab.apiserver_is_ready(components)
    document = {"directory": str(lab.directory), "nodes": rows, "apiServerReady": ready}
    return LabStatus(document, ready and len(running) == len(rows) + 1)
