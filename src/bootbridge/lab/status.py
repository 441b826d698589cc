"""The status of a lab, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootbridge.lab.components import Components
from bootbridge.lab.lab import Lab


@dataclass(frozen=True)
class LabStatus:
    document: dict[str, Any]
    text: str
    is_up: bool


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
    lines = [f"lab in {lab.directory}"]
    for row in rows:
        state = f"running, pid {row['pid']}" if row["pid"] else "not running"
        lines.append(f"  {row['name']:<12} {', '.join(row['addresses']):<28} {state}")
    lines.append(f"  {'API server':<12} {'ready' if ready else 'not ready'}")
    return LabStatus(document, "\n".join(lines) + "\n", ready and len(running) == len(rows) + 1)
