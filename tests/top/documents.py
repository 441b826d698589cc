"""Status documents as the programs serve them, with a few chosen values."""

from __future__ import annotations

from typing import Any

from bootbridge.top.rates import History
from bootbridge.top.snapshot import Snapshot
from bootbridge.top.status_document import parse_status

NOW = "2026-11-18T03:00:00.000Z"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e<script>\r\n"


def agent(number: int, **more: object) -> dict[str, Any]:
    return {
        "id": f"agent-{number}",
        "address": f"192.0.2.{number}:4411",
        "node": f"worker-{number}",
        "identifiers": [f"host=worker-{number}", f"cidr=10.0.{number}.0/24"],
        "connected_seconds": 60.0 * number,
        "draining": False,
        "silent": False,
        "retirement_reason": "",
        "extension": True,
        "version": "bootbridge/0.1.0",
        "routes": number,
        "dials_succeeded": 10 * number,
        "dials_failed": 0,
        "bytes_to_agent": 1000 * number,
        "bytes_from_agent": 2000 * number,
        "queued_bytes": 0,
        "stalled_connections": 0,
        "credentials_expire": "2026-11-18T15:00:00Z",
        **more,
    }


def connection(number: int, **more: object) -> dict[str, Any]:
    return {
        "id": number,
        "destination": f"10.0.0.{number}:8443",
        "agent": f"agent-{number % 3}",
        "caller": "unix",
        "strategy": "default",
        "protocol": "http-connect",
        "age_seconds": float(number),
        "bytes_up": 100 * number,
        "bytes_down": 5000 * number,
        "queued_up": 0,
        "queued_down": 0,
        "state": "open",
        "waiting_for": "",
        **more,
    }


def dial(number: int, **more: object) -> dict[str, Any]:
    return {
        "time": f"2026-11-18T02:59:{59 - number:02}.000Z",
        "caller": "unix",
        "destination": f"10.0.0.{number}:443",
        "strategy": "default",
        "agent": "agent-1",
        "tried_agents": [],
        "outcome": "established",
        "hop": "",
        "reason": "",
        "connect_seconds": 0.004,
        **more,
    }


def failed_dial(number: int, **more: object) -> dict[str, Any]:
    failed = {"outcome": "refused", "hop": "agent to endpoint", "reason": "connection refused"}
    return dial(number, **{**failed, **more})


def server_document(agents: int = 3, connections: int = 5, **more: object) -> dict[str, Any]:
    return {
        "program": "proxy-server",
        "version": "0.1.0",
        "time": NOW,
        "uptime_seconds": 100.0,
        "server_id": "server-1",
        "ready": True,
        "stopping": False,
        "strategies": ["destHost", "default"],
        "mode": "http-connect",
        "frontend": "/run/bootbridge.sock",
        "pending_dials": 0,
        "bytes": {"to_agent": 1000, "to_frontend": 2000},
        "dials": {"succeeded": 10, "failed": {"no_agent": 0, "error_response": 2}, "retried": 0},
        "agents_total": agents,
        "agents": [agent(number) for number in range(1, agents + 1)],
        "connections_total": connections,
        "connections": [connection(number) for number in range(1, connections + 1)],
        "recent_dials": [dial(0), failed_dial(1)],
        "recent_failures": [failed_dial(1)],
        "tls": {"certificate_expires": "2026-12-18T03:00:00Z", "reload_error": None},
        **more,
    }


def agent_document(**more: object) -> dict[str, Any]:
    return {
        "program": "proxy-agent",
        "version": "0.1.0",
        "time": NOW,
        "uptime_seconds": 100.0,
        "agent_id": "agent-1",
        "ready": True,
        "identifiers": ["host=worker-1"],
        "servers": [
            {
                "address": "192.0.2.1:8091",
                "server_id": "server-1",
                "state": "connected",
                "connected_seconds": 50.0,
                "routes": 2,
                "bytes_to_server": 700,
                "bytes_from_server": 300,
                "last_error": "",
                "next_attempt_seconds": None,
            }
        ],
        "connections_total": 1,
        "connections": [{**connection(1), "server": "server-1"}],
        "dials": {"succeeded": 3, "failed": {"timeout": 1}},
        "recent_dials": [],
        "recent_failures": [],
        **more,
    }


def snapshot(document: dict[str, Any], taken: float = 0.0) -> Snapshot:
    found = parse_status(document, taken=taken)
    assert found is not None
    return found


def history(*documents: dict[str, Any], seconds: float = 1.0) -> History:
    """Samples at intervals of `seconds`."""
    found = History(seconds / 2)
    for number, document in enumerate(documents):
        found.add(snapshot(document, taken=number * seconds))
    return found
