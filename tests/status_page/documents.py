"""Status documents for the tests of the page: a busy server and agent, and as many rows as asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

NOW = datetime(2026, 11, 18, 3, 0, 0, tzinfo=UTC)


def at(seconds_ago: float) -> str:
    return (NOW - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")


def agent(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"agent-{number}",
        "address": f"192.0.2.{number % 250}:4{number:04}",
        "node": f"node-{number}",
        "identifiers": [f"host=node-{number}", f"cidr=10.128.{number % 250}.0/24"],
        "strategies": ["destHost", "default"],
        "connectedSeconds": 3600.0 + number,
        "draining": False,
        "silent": False,
        "retirementReason": "",
        "extension": True,
        "version": "bootbridge/0.1.0",
        "routes": number % 7,
        "pendingDials": 0,
        "dialsSucceeded": 10 * number,
        "dialsFailed": 0,
        "bytesToAgent": 1000 * number,
        "bytesFromAgent": 5000 * number,
        "queuedBytes": 0,
        "stalledConnections": 0,
        "credentialsExpire": at(-30 * 86400),
        "ignoredIdentifiers": 0,
    } | changes


def connection(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": number,
        "destination": f"10.128.0.{number % 250}:8443",
        "agent": f"agent-{number % 3}",
        "caller": "unix",
        "strategy": "default",
        "protocol": "http-connect",
        "ageSeconds": 1.5 * number,
        "bytesUp": 100 * number,
        "bytesDown": 2000 * number,
        "queuedUp": 0,
        "queuedDown": 0,
        "state": "open",
        "waitingFor": "",
    } | changes


def dial(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "time": at(5 + number),
        "caller": "unix",
        "destination": f"10.128.0.{number % 250}:8443",
        "strategy": "default",
        "agent": "agent-1",
        "triedAgents": ["agent-1"],
        "outcome": "established",
        "hop": "",
        "reason": "",
        "connectSeconds": 0.012,
    } | changes


def failed_dial(number: int, **changes: Any) -> dict[str, Any]:
    return (
        dial(number)
        | {
            "outcome": "refused",
            "hop": "agent to endpoint",
            "reason": "dial tcp 10.128.0.9:8443: connection refused",
        }
        | changes
    )


def server(agent_count: int = 3, connection_count: int = 4, /, **changes: Any) -> dict[str, Any]:
    """Rows are limited as the program limits them when the page asks."""
    return {
        "program": "proxy-server",
        "version": "0.1.0",
        "compiled": False,
        "time": at(0),
        "uptimeSeconds": 7325.0,
        "serverID": "4f7c2b3e-server",
        "serverCount": 1,
        "ready": bool(agent_count),
        "stopping": False,
        "strategies": ["destHost", "default"],
        "mode": "http-connect",
        "frontend": "/run/konnectivity/server.sock",
        "agentPort": 8091,
        "frontends": {"httpConnect": connection_count, "grpc": 0},
        "pendingDials": 0,
        "routes": connection_count,
        "bytes": {"toAgent": 123_456, "toFrontend": 7_654_321},
        "dials": {"succeeded": 42, "failed": {"error_response": 2, "no_agent": 1}, "retried": 1},
        "agentsTotal": agent_count,
        "agents": [agent(number) for number in range(min(agent_count, 1000))],
        "connectionsTotal": connection_count,
        "connections": [connection(number) for number in range(min(connection_count, 50))],
        "destinations": [
            {
                "destination": f"10.128.0.{number}:8443",
                "agent": f"agent-{number % max(1, agent_count)}",
                "connections": 1,
                "recentDials": 5,
                "recentFailures": 0,
            }
            for number in range(min(connection_count, 50))
        ],
        "recentDials": [dial(number) for number in range(30)],
        "recentFailures": [],
        "tls": {
            "files": {"cluster-cert": "/etc/kubernetes/server.crt"},
            "certificateExpires": at(-90 * 86400),
            "reloadError": None,
        },
        "overlappingIdentifiers": [],
        "limits": [{"name": "unadmitted agent connections", "current": 0, "maximum": 512, "reachedTotal": 0}],
    } | changes


def proxy_agent(**changes: Any) -> dict[str, Any]:
    return {
        "program": "proxy-agent",
        "version": "0.1.0",
        "compiled": False,
        "time": at(0),
        "uptimeSeconds": 725.0,
        "agentID": "agent-1",
        "ready": True,
        "draining": False,
        "identifiers": ["host=node-1"],
        "servers": [
            {
                "address": "192.0.2.1:8091",
                "serverID": "4f7c2b3e-server",
                "state": "connected",
                "connectedSeconds": 700.0,
                "extension": True,
                "version": "bootbridge/0.1.0",
                "routes": 2,
                "bytesToServer": 4000,
                "bytesFromServer": 9000,
                "lastError": "",
                "nextAttemptSeconds": None,
            }
        ],
        "connectionsTotal": 2,
        "connections": [
            {
                key: value
                for key, value in connection(number, server="192.0.2.1:8091").items()
                if key != "agent"
            }
            for number in range(2)
        ],
        "dials": {"succeeded": 12, "failed": {}},
        "recentDials": [dial(1)],
        "recentFailures": [],
        "tls": {"files": {}, "certificateExpires": at(-90 * 86400), "reloadError": None},
        "limits": [],
    } | changes
