"""What of a lab runs, for people and for scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootbridge.lab.components import Components
from bootbridge.lab.lab import Lab


@dataclass(frozen=True)
class Status:
    document: dict[str, Any]
    text: str
    works: bool


def status(lab: Lab, components: Components) -> Status:
    alive = {namespaces.name: namespaces.pid for namespaces in lab.live_namespaces()}
    rows: list[dict[str, Any]] = [
        {"name": node.name, "pid": alive.get(node.name), "addresses": [str(each) for each in node.addresses]}
        for node in lab.layout.all_nodes
    ]
    ready = lab.layout.first.name in alive and lab.apiserver_is_ready(components)
    document = {"directory": str(lab.directory), "nodes": rows, "apiServerReady": ready}
    lines = [f"lab in {lab.directory}"]
    for row in rows:
        state = f"up, first process {row['pid']}" if row["pid"] else "not up"
        lines.append(f"  {row['name']:<12} {', '.join(row['addresses']):<28} {state}")
    lines.append(f"  API server   {'ready' if ready else 'does not answer'}")
    return Status(document, "\n".join(lines) + "\n", ready and len(alive) == len(rows) + 1)
