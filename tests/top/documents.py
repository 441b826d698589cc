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
        "connectedSeconds": 60.0 * number,
        "draining": False,
        "silent": False,
        "retirementReason": "",
        "extension": True,
        "version": "bootbridge/0.1.0",
        "routes": number,
        "dialsSucceeded": 10 * number,
        "dialsFailed": 0,
        "bytesToAgent": 1000 * number,
        "bytesFromAgent": 2000 * number,
        "queuedBytes": 0,
        "stalledConnections": 0,
        "credentialsExpire": "2026-11-18T15:00:00Z",
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
        "ageSeconds": float(number),
        "bytesUp": 100 * number,
        "bytesDown": 5000 * number,
        "queuedUp": 0,
        "queuedDown": 0,
        "state": "open",
        "waitingFor": "",
        **more,
    }


def dial(number: int, **more: object) -> dict[str, Any]:
    return {
        "time": f"2026-11-18T02:59:{59 - number:02}.000Z",
        "caller": "unix",
        "destination": f"10.0.0.{number}:443",
        "strategy": "default",
        "agent": "agent-1",
        "triedAgents": [],
        "outcome": "established",
        "hop": "",
        "reason": "",
        "connectSeconds": 0.004,
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
        "uptimeSeconds": 100.0,
        "serverID": "server-1",
        "ready": True,
        "stopping": False,
        "strategies": ["destHost", "default"],
        "mode": "http-connect",
        "frontend": "/run/bootbridge.sock",
        "pendingDials": 0,
        "bytes": {"toAgent": 1000, "toFrontend": 2000},
        "dials": {"succeeded": 10, "failed": {"no_agent": 0, "error_response": 2}, "retried": 0},
        "agentsTotal": agents,
        "agents": [agent(number) for number in range(1, agents + 1)],
        "connectionsTotal": connections,
        "connections": [connection(number) for number in range(1, connections + 1)],
        "recentDials": [dial(0), failed_dial(1)],
        "recentFailures": [failed_dial(1)],
        "tls": {"certificateExpires": "2026-12-18T03:00:00Z", "reloadError": None},
        **more,
    }


def agent_document(**more: object) -> dict[str, Any]:
    return {
        "program": "proxy-agent",
        "version": "0.1.0",
        "time": NOW,
        "uptimeSeconds": 100.0,
        "agentID": "agent-1",
        "ready": True,
        "identifiers": ["host=worker-1"],
        "servers": [
            {
                "address": "192.0.2.1:8091",
                "serverID": "server-1",
                "state": "connected",
                "connectedSeconds": 50.0,
                "routes": 2,
                "bytesToServer": 700,
                "bytesFromServer": 300,
                "lastError": "",
                "nextAttemptSeconds": None,
            }
        ],
        "connectionsTotal": 1,
        "connections": [{**connection(1), "server": "server-1"}],
        "dials": {"succeeded": 3, "failed": {"timeout": 1}},
        "recentDials": [],
        "recentFailures": [],
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
