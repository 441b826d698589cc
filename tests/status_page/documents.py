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
        "connected_seconds": 3600.0 + number,
        "draining": False,
        "silent": False,
        "retirement_reason": "",
        "extension": True,
        "version": "bootbridge/0.1.0",
        "routes": number % 7,
        "pending_dials": 0,
        "dials_succeeded": 10 * number,
        "dials_failed": 0,
        "bytes_to_agent": 1000 * number,
        "bytes_from_agent": 5000 * number,
        "queued_bytes": 0,
        "stalled_connections": 0,
        "credentials_expire": at(-30 * 86400),
        "ignored_identifiers": 0,
    } | changes


def connection(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": number,
        "destination": f"10.128.0.{number % 250}:8443",
        "agent": f"agent-{number % 3}",
        "caller": "unix",
        "strategy": "default",
        "protocol": "http-connect",
        "age_seconds": 1.5 * number,
        "bytes_up": 100 * number,
        "bytes_down": 2000 * number,
        "queued_up": 0,
        "queued_down": 0,
        "state": "open",
        "waiting_for": "",
    } | changes


def dial(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "time": at(5 + number),
        "caller": "unix",
        "destination": f"10.128.0.{number % 250}:8443",
        "strategy": "default",
        "agent": "agent-1",
        "tried_agents": ["agent-1"],
        "outcome": "established",
        "hop": "",
        "reason": "",
        "connect_seconds": 0.012,
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
        "uptime_seconds": 7325.0,
        "server_id": "4f7c2b3e-server",
        "server_count": 1,
        "ready": bool(agent_count),
        "stopping": False,
        "strategies": ["destHost", "default"],
        "mode": "http-connect",
        "frontend": "/run/konnectivity/server.sock",
        "agent_port": 8091,
        "frontends": {"http_connect": connection_count, "grpc": 0},
        "pending_dials": 0,
        "routes": connection_count,
        "bytes": {"to_agent": 123_456, "to_frontend": 7_654_321},
        "dials": {"succeeded": 42, "failed": {"error_response": 2, "no_agent": 1}, "retried": 1},
        "agents_total": agent_count,
        "agents": [agent(number) for number in range(min(agent_count, 1000))],
        "connections_total": connection_count,
        "connections": [connection(number) for number in range(min(connection_count, 50))],
        "destinations": [
            {
                "destination": f"10.128.0.{number}:8443",
                "agent": f"agent-{number % max(1, agent_count)}",
                "connections": 1,
                "recent_dials": 5,
                "recent_failures": 0,
            }
            for number in range(min(connection_count, 50))
        ],
        "recent_dials": [dial(number) for number in range(30)],
        "recent_failures": [],
        "tls": {
            "files": {"cluster-cert": "/etc/kubernetes/server.crt"},
            "certificate_expires": at(-90 * 86400),
            "reload_error": None,
        },
        "overlapping_identifiers": [],
        "limits": [
            {"name": "unadmitted agent connections", "current": 0, "maximum": 512, "reached_total": 0}
        ],
    } | changes


def proxy_agent(**changes: Any) -> dict[str, Any]:
    return {
        "program": "proxy-agent",
        "version": "0.1.0",
        "compiled": False,
        "time": at(0),
        "uptime_seconds": 725.0,
        "agent_id": "agent-1",
        "ready": True,
        "draining": False,
        "identifiers": ["host=node-1"],
        "servers": [
            {
                "address": "192.0.2.1:8091",
                "server_id": "4f7c2b3e-server",
                "state": "connected",
                "connected_seconds": 700.0,
                "extension": True,
                "version": "bootbridge/0.1.0",
                "routes": 2,
                "bytes_to_server": 4000,
                "bytes_from_server": 9000,
                "last_error": "",
                "next_attempt_seconds": None,
            }
        ],
        "connections_total": 2,
        "connections": [
            {
                key: value
                for key, value in connection(number, server="192.0.2.1:8091").items()
                if key != "agent"
            }
            for number in range(2)
        ],
        "dials": {"succeeded": 12, "failed": {}},
        "recent_dials": [dial(1)],
        "recent_failures": [],
        "tls": {"files": {}, "certificate_expires": at(-90 * 86400), "reload_error": None},
        "limits": [],
    } | changes
