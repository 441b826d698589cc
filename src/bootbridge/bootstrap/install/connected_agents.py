"""The agents that are connected to the node's server, from its `/status`."""

from __future__ import annotations

import json
from typing import Final

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.host import Host

# An answer is read up to 1 MiB, and an agent may advertise 17 KiB of identifiers.
_PAGE_ROWS: Final = 40
_PAGES_MAX: Final = 250


def connected_agents(host: Host, plan: Plan) -> list[str] | None:
    """Returns their ids, sorted. None: no answer, or a Go server, which has no such page."""
    ids: list[str] = []
    for _ in range(_PAGES_MAX):
        query = f"connections_limit=0&agents_limit={_PAGE_ROWS}&agents_offset={len(ids)}"
        status, body = host.http_get(plan.ports.server_admin, f"/status?{query}")
        if status != 200:
            return None
        try:
            document = json.loads(body)
            page = [str(agent["id"]) for agent in document["agents"]]
            ids += page
            if not page or len(ids) >= document["agentsTotal"]:
                break
        except (ValueError, KeyError, TypeError):
            return None
    return sorted(ids)
