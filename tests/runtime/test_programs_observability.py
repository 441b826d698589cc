"""Health, readiness, metrics, status and logs of the programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from bootbridge import __version__
from tests.support.process_endpoints import Endpoint, echo
from tests.support.process_program import free_port, until
from tests.support.process_tunnels import RefusedDialError, dial, receive
from tests.support.tunnel_programs import AGENT_METRICS, SERVER_METRICS, Programs

Endpoints = Callable[..., Endpoint]

SERVER_NAMES = """
    connection_duration_seconds culled_leases_count dial_duration_seconds dial_failure_count
    established_connections frontend_write_duration_seconds full_receive_channels grpc_connections
    http_connections pending_backend_dials ready_backend_connections ready_backends stream_packets_total
    closed_connections_total queued_bytes stalled_seconds_total transferred_bytes_total
"""
AGENT_NAMES = """
    dial_duration_seconds endpoint_dial_failure_total known_server_count open_endpoint_connections
    open_server_connections server_connection_failure_count stream_packets_total
    closed_connections_total queued_bytes stalled_seconds_total transferred_bytes_total
"""


def test_a_server_is_healthy_at_once_and_ready_with_an_agent(programs: Programs) -> None:
    server = programs.server()
    assert server.health.get("/healthz") == (200, "ok")
    assert server.health.get("/readyz") == (500, "no connection to any proxy agent")
    assert server.health.get("/ready") == (500, "no connection to any proxy agent")
    programs.agent(server)
    until(lambda: server.health.get("/ready") == (200, "ok"), "it is ready")
    assert server.health.get("/nowhere")[0] == 404


def test_both_programs_expose_upstreams_metrics_and_ours(programs: Programs) -> None:
    """Names that dashboards and alerts rely on, on the ports where they look."""
    server, agent = programs.pair()
    text = server.health.get("/metrics")[1]
    assert [name for name in SERVER_NAMES.split() if f"# TYPE {SERVER_METRICS}{name} " not in text] == []
    assert "process_resident_memory_bytes" in text
    assert server.admin.get("/metrics")[0] == 200
    text = agent.health.get("/metrics")[1]
    assert [name for name in AGENT_NAMES.split() if f"# TYPE {AGENT_METRICS}{name} " not in text] == []
    assert "process_resident_memory_bytes" in text
    # The agent's admin port sends scrapers to the health port; urllib follows.
    assert agent.admin.get("/metrics")[0] == 200


def test_bytes_are_counted_per_direction(programs: Programs, mode: str, endpoint: Endpoints) -> None:
    """Payload alone, once in each program."""
    server, agent = programs.pair(mode=mode)
    tunnel = dial(server, endpoint(echo).address)
    tunnel.send(b"x" * 1000)
    assert receive(tunnel, 1000) == b"x" * 1000
    tunnel.close()
    for direction in ("to_agent", "to_frontend"):
        assert server.metric("transferred_bytes_total", direction=direction) == 1000
    for direction in ("to_endpoint", "to_server"):
        assert agent.metric("transferred_bytes_total", direction=direction) == 1000


def test_status_shows_the_tables(programs: Programs, endpoint: Endpoints) -> None:
    """A connection can be seen on both sides while it is open, and not after it."""
    server, agent = programs.pair(agent_flags={"agent-id": "node-7"})
    tunnel = dial(server, endpoint(echo).address)
    status = server.admin.status()
    assert status["ready"] is True
    assert status["routes"] == 1
    assert [(each["id"], each["extension"]) for each in status["agents"]] == [("node-7", True)]
    assert agent.admin.status()["routes"] == 1
    (connected,) = agent.admin.status()["servers"]
    assert (connected["serverID"], connected["state"]) == (status["serverID"], "connected")
    (row,) = status["agents"]
    assert row["address"].startswith("127.0.0.1:")
    assert row["credentialsExpire"].endswith("Z")
    assert status["agents"][0]["version"] == connected["version"] == f"bootbridge/{__version__}"
    tunnel.close()
    until(lambda: server.admin.status()["routes"] == agent.admin.status()["routes"] == 0, "it is gone")


def test_status_is_on_the_admin_port_only(programs: Programs) -> None:
    """The agent's health port is reachable in the pod network."""
    for program in programs.pair():
        assert program.health.get("/status")[0] == 404
        assert program.admin.get("/status")[0] == 200
        assert program.admin.get("/status?sort=x") == (
            400,
            "sort: unknown order 'x' (use age, bytes, queued)\n",
        )


def test_status_agrees_with_metrics_and_with_the_other_program(
    programs: Programs, mode: str, endpoint: Endpoints
) -> None:
    """Bytes of open and closed connections, dials and failures: the same numbers everywhere."""
    server, agent = programs.pair(mode=mode)
    tunnels = [dial(server, endpoint(echo).address) for _ in range(3)]
    for number, tunnel in enumerate(tunnels, 1):
        tunnel.send(b"x" * 1000 * number)
        assert len(receive(tunnel, 1000 * number)) == 1000 * number
    tunnels[0].close()
    until(lambda: server.admin.status()["connectionsTotal"] == 2, "one connection is closed")
    refused = f"127.0.0.1:{free_port()}"
    with pytest.raises(RefusedDialError):
        dial(server, refused)
    s, a = server.admin.status(), agent.admin.status()

    assert s["bytes"] == {"toAgent": 6000, "toFrontend": 6000}
    assert a["bytes"] == {"toEndpoint": 6000, "toServer": 6000}
    for key, direction in (("toAgent", "to_agent"), ("toFrontend", "to_frontend")):
        assert server.metric("transferred_bytes_total", direction=direction) == s["bytes"][key]
    assert s["agents"][0]["bytesToAgent"] == s["agents"][0]["bytesFromAgent"] == 6000
    assert a["servers"][0]["bytesToServer"] == a["servers"][0]["bytesFromServer"] == 6000
    for document in (s, a):
        assert sorted(row["bytesUp"] for row in document["connections"]) == [2000, 3000]
        assert document["dials"]["succeeded"] == 3
        (failure,) = document["recentFailures"]
        assert (failure["destination"], failure["outcome"], failure["hop"]) == (
            refused,
            "refused",
            "agent to endpoint",
        )
        assert "connection refused" in failure["reason"]
        assert len(document["recentDials"]) == 4
    assert s["dials"]["failed"]["error_response"] == server.metric(
        "dial_failure_count", reason="error_response"
    )
    assert s["connections"][0]["protocol"] == mode
    assert s["connections"][0]["caller"] == "unix"


def test_a_tls_caller_is_shown_with_its_address(programs: Programs, mode: str, endpoint: Endpoints) -> None:
    server, _ = programs.pair(mode=mode, tcp=True)
    tunnel = dial(server, endpoint(echo).address)
    (row,) = server.admin.status()["connections"]
    assert row["caller"].startswith("127.0.0.1:")
    assert server.admin.status()["frontend"] == f":{server.frontend_port}"
    tunnel.close()


def test_an_agent_shows_servers_that_it_does_not_reach(programs: Programs) -> None:
    port = free_port()
    agent = programs.agent(port)
    until(lambda: agent.admin.status()["servers"][0]["lastError"], "an attempt has failed")
    (server,) = agent.admin.status()["servers"]
    assert server["address"] == f"127.0.0.1:{port}"
    assert server["state"] in ("waiting", "connecting")
    assert "connection refused" in server["lastError"]
    assert agent.admin.status()["ready"] is False


def test_the_validity_of_own_certificates_is_shown_by_flag(programs: Programs) -> None:
    """A renewed file shows at the next scrape, although no connection was opened since."""
    server, agent = programs.pair(tcp=True)
    name = "tls_certificate_not_after_timestamp_seconds"
    before = server.metric(name, flag="--cluster-cert")
    for program, flag in ((server, "--cluster-cert"), (server, "--server-cert"), (agent, "--agent-cert")):
        start = program.metric("tls_certificate_not_before_timestamp_seconds", flag=flag)
        assert start < time.time() < program.metric(name, flag=flag) < start + 86400 + 600
    renewed = programs.certificates.agents.issue_server(["127.0.0.1"], validity=timedelta(hours=3))
    renewed.write(programs.folder, "server")
    until(lambda: server.metric(name, flag="--cluster-cert") < before, "the new expiry is shown")
    assert abs(server.metric(name, flag="--cluster-cert") - time.time() - 3 * 3600) < 600


def test_why_a_connection_closed_is_counted(programs: Programs, endpoint: Endpoints) -> None:
    server, _ = programs.pair()
    dial(server, endpoint(echo).address).close()
    until(lambda: server.metric("closed_connections_total", reason="frontend closed") == 1, "counted")


def test_profiles_are_there_only_if_asked_for(programs: Programs) -> None:
    plain = programs.server()
    assert plain.admin.get("/debug/pprof/")[0] == 404
    profiled = programs.server(flags={"enable-profiling": True})
    assert profiled.admin.get("/debug/pprof/")[0] == 200


def test_logs_are_one_json_object_per_line_if_asked_for(programs: Programs) -> None:
    server = programs.server(flags={"log-format": "json"})
    agent = programs.agent(server, flags={"log-format": "json"})
    server.wait_until_ready()
    for program in (server, agent):
        lines = [json.loads(line) for line in program.log.splitlines()]
        assert all({"time", "level", "message"} <= line.keys() for line in lines)
        assert lines


def test_a_busy_tunnel_is_quiet_in_the_log(programs: Programs, endpoint: Endpoints) -> None:
    """By default nothing is logged per connection or per packet."""
    server, agent = programs.pair()
    # A thread writes each log, a moment after the event.
    agent.wait_for_log("server connected")
    server.wait_for_log("agent connected")
    before = len(server.log), len(agent.log)
    for _ in range(20):
        tunnel = dial(server, endpoint(echo).address)
        tunnel.send(b"quiet")
        assert receive(tunnel, 5) == b"quiet"
        tunnel.close()
    assert (len(server.log), len(agent.log)) == before


def test_a_refused_dial_says_which_hop_failed_and_why(programs: Programs) -> None:
    server, _ = programs.pair()
    try:
        dial(server, f"127.0.0.1:{free_port()}")
    except RefusedDialError:
        pass
    server.wait_for_log("dial refused")
    line = next(line for line in server.log.splitlines() if "dial refused" in line)
    assert "agent to endpoint" in line
    assert "connection refused" in line
