"""The behaviours that Konnectivity's integration tests require, for every pairing.

The pairings are our server and agent, our server with the original agent, and the original server
with our agent. Upstream's suite itself runs in `test_upstream_suite.py`.
"""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from bootbridge.wire import packets as p
from tests.support.process_endpoints import Endpoint, HttpEndpoint, echo, pattern
from tests.support.process_forwarder import Balancer
from tests.support.process_pairings import with_our_server
from tests.support.process_program import free_port, until
from tests.support.process_tunnels import (
    ConnectTunnel,
    GrpcTunnel,
    RefusedDialError,
    dial,
    fetch,
    frontend_socket,
    http_request,
    receive,
)
from tests.support.tunnel_programs import Agent, Pairing, Programs, Server

MIB = 1 << 20
HELLO = b"hello from the endpoint"
# A label of more than 63 characters cannot exist, so every resolver rejects it without a query.
NO_SUCH_NAME = f"{'x' * 64}.invalid"


def failures(server: Server) -> dict[str, float]:
    """Returns how many dials failed, by reason; reasons without a failure are left out."""
    name = "konnectivity_network_proxy_server_dial_failure_count"
    return {
        key.partition('"')[2].rstrip('"}'): value
        for key, value in server.health.metrics().items()
        if key.startswith(name) and value
    }


def dials_seen(agent: Agent) -> float:
    return agent.metric("stream_packets_total", packet_type="DIAL_REQ", segment="to_agent")


def wait_until_idle(server: Server, agent: Agent) -> None:
    """Waits until the gauges of server and agent show no dial, connection or stream of a caller."""
    until(lambda: server.metric("established_connections") == 0, "no established connection")
    until(lambda: server.metric("pending_backend_dials") == 0, "no pending dial")
    until(lambda: agent.metric("open_endpoint_connections") == 0, "no open endpoint")
    until(lambda: server.metric("http_connections") == 0, "no open CONNECT request")
    until(lambda: server.metric("grpc_connections", service_method="Proxy") == 0, "no Proxy stream")


def test_a_request_is_answered_and_the_200_has_no_trailing_bytes(
    programs: Programs, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """The response body arrives, no connection stays open, and no failure is counted."""
    server, agent = programs.pair(pairing, mode)
    tunnel = dial(server, web.address)
    if isinstance(tunnel, ConnectTunnel):
        assert tunnel.extra == b""
    assert http_request(tunnel, "/hello") == HELLO
    tunnel.close()
    wait_until_idle(server, agent)
    assert failures(server) == {}


def test_a_refused_dial_reports_connection_refused(programs: Programs, pairing: Pairing, mode: str) -> None:
    """The caller reads `connection refused` (502 in HTTP), and both sides count one failure."""
    server, agent = programs.pair(pairing, mode)
    with pytest.raises(RefusedDialError, match="connection refused") as refused:
        dial(server, f"127.0.0.1:{free_port()}")
    assert refused.value.status == (502 if mode == "http-connect" else 0)
    assert failures(server) == {"error_response": 1}
    assert agent.metric("endpoint_dial_failure_total", reason="unknown") == 1
    wait_until_idle(server, agent)


def test_an_unknown_host_name_reports_no_such_host(programs: Programs, pairing: Pairing, mode: str) -> None:
    """502 in HTTP; the agent counts it as `unknown`."""
    server, agent = programs.pair(pairing, mode)
    with pytest.raises(RefusedDialError, match="no such host") as refused:
        dial(server, f"{NO_SUCH_NAME}:80")
    assert refused.value.status == (502 if mode == "http-connect" else 0)
    assert agent.metric("endpoint_dial_failure_total", reason="unknown") == 1


def test_a_cancelled_request_leaves_no_connection(
    programs: Programs, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """The caller cancels before the endpoint has answered."""
    server, agent = programs.pair(pairing, mode)
    tunnel = dial(server, web.address)
    tunnel.send(b"GET /wait HTTP/1.1\r\nHost: endpoint\r\n\r\n")
    until(lambda: agent.metric("open_endpoint_connections") == 1, "the endpoint is connected")
    tunnel.close()
    wait_until_idle(server, agent)


def test_a_cancelled_grpc_dial_is_counted_as_frontend_close(programs: Programs, pairing: Pairing) -> None:
    """The agent does not answer and the caller cancels: no dial stays pending."""
    server, agent = programs.pair(pairing, "grpc")
    agent.pause()
    tunnel = GrpcTunnel(frontend_socket(server))
    tunnel.send_packet(p.DialRequest("tcp", "127.0.0.1:1", 99))
    until(lambda: server.metric("pending_backend_dials") == 1, "the dial is pending")
    tunnel.send_packet(p.CloseDial(99))
    tunnel.abandon()
    until(lambda: failures(server) == {"frontend_close": 1}, "the cancellation is counted")
    until(lambda: server.metric("pending_backend_dials") == 0, "no dial is pending")
    agent.go_on()


@with_our_server
def test_a_connect_client_that_disconnects_during_its_dial_is_counted_as_frontend_close(
    programs: Programs, pairing: Pairing
) -> None:
    """Only for our server: the original server does not read from a CONNECT client during its dial."""
    server, agent = programs.pair(pairing)
    agent.pause()
    sock = frontend_socket(server)
    sock.sendall(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    until(lambda: server.metric("pending_backend_dials") == 1, "the dial is pending")
    sock.close()
    until(lambda: failures(server) == {"frontend_close": 1}, "the cancellation is counted")
    until(lambda: server.metric("pending_backend_dials") == 0, "no dial is pending")
    agent.go_on()


def test_fifty_cancelled_requests_leave_no_connection(
    programs: Programs, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """All run in parallel, and each is cancelled before its response."""
    server, agent = programs.pair(pairing, mode)

    def cancelled(_: int) -> None:
        tunnel = dial(server, web.address)
        tunnel.send(b"GET /wait HTTP/1.1\r\nHost: endpoint\r\n\r\n")
        tunnel.close()

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(cancelled, range(50)))
    wait_until_idle(server, agent)


@pytest.mark.slow
def test_a_dial_to_an_unresponsive_endpoint_times_out(
    programs: Programs, pairing: Pairing, mode: str
) -> None:
    """`i/o timeout` after the agent's 5 s (504 in HTTP); the agent counts it as `timeout`."""
    server, agent = programs.pair(pairing, mode)
    # A listener whose accept queue is full drops further SYNs, so this needs no address outside this machine.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as hole:
        waiting = [socket.socket() for _ in range(2)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(hole.getsockname())
        with pytest.raises(RefusedDialError, match="i/o timeout") as refused:
            dial(server, f"127.0.0.1:{hole.getsockname()[1]}")
        for each in waiting:
            each.close()
    assert refused.value.status == (504 if mode == "http-connect" else 0)
    assert agent.metric("endpoint_dial_failure_total", reason="timeout") == 1
    assert failures(server) == {"error_response": 1}


def test_a_large_response_arrives_complete(
    programs: Programs, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    server, _ = programs.pair(pairing, mode)
    assert fetch(server, web.address, f"/bytes/{20 * MIB}") == pattern(20 * MIB)


def test_large_parallel_responses_arrive_complete(
    programs: Programs, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    server, _ = programs.pair(pairing, mode)
    wanted = hashlib.sha256(pattern(10 * MIB)).digest()
    with ThreadPoolExecutor(10) as pool:
        bodies = pool.map(lambda _: fetch(server, web.address, f"/bytes/{10 * MIB}"), range(10))
        assert all(hashlib.sha256(body).digest() == wanted for body in bodies)


def test_a_hundred_requests_over_two_agents_each_receive_the_matching_response(
    programs: Programs, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    server, first = programs.pair(pairing, mode)
    second = programs.agent(server, pairing.agent)
    server.wait_for_agents(2)

    def post(number: int) -> bool:
        body = os.urandom(1000 + number * 100)
        tunnel = dial(server, web.address)
        answer = http_request(tunnel, "/", body)
        tunnel.close()
        return answer == hashlib.sha256(body).hexdigest().encode()

    with ThreadPoolExecutor(100) as pool:
        assert all(pool.map(post, range(100)))
    assert dials_seen(first) + dials_seen(second) == 100
    assert min(dials_seen(first), dials_seen(second)) > 0


def test_a_second_agent_with_the_same_id_does_not_break_a_running_request(
    programs: Programs, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """The second stream of one agent id connects and disconnects; the open connection keeps working."""
    server = programs.server(pairing.server, mode)
    programs.agent(server, pairing.agent, flags={"agent-id": "twin"})
    server.wait_until_ready()
    tunnel = dial(server, web.address)
    assert http_request(tunnel, "/hello") == HELLO
    twin = programs.agent(server, pairing.agent, flags={"agent-id": "twin"})
    until(lambda: server.metric("grpc_connections", service_method="Connect") == 2, "two streams")
    assert http_request(tunnel, "/hello") == HELLO
    twin.kill()
    until(lambda: server.metric("grpc_connections", service_method="Connect") == 1, "one stream")
    assert http_request(tunnel, "/hello") == HELLO
    tunnel.close()


def test_a_lost_agent_fails_its_connections_at_once_and_a_new_agent_serves(
    programs: Programs, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """A kept-alive connection fails without a timeout; a new agent serves the next request."""
    server, agent = programs.pair(pairing, mode)
    tunnel = dial(server, web.address)
    assert http_request(tunnel, "/hello") == HELLO
    agent.kill()
    # A hang would end in the socket's timeout, which is not a ConnectionError.
    with pytest.raises(ConnectionError):
        http_request(tunnel, "/hello")
    tunnel.close()
    programs.agent(server, pairing.agent)
    server.wait_until_ready()
    assert fetch(server, web.address) == HELLO


def test_an_agent_reconnects_to_a_restarted_server(
    programs: Programs, pairing: Pairing, web: HttpEndpoint
) -> None:
    """The agent has 1, 0, then 1 connections while the server restarts on the same port."""
    server, agent = programs.pair(pairing)
    agent.wait_for_servers(1)
    server.kill()
    agent.wait_for_servers(0)
    ports = {"agent-port": server.agent_port, "uds-name": server.uds}
    again = programs.server(pairing.server, flags=ports)
    agent.wait_for_servers(1)
    again.wait_until_ready()
    assert fetch(again, web.address) == HELLO


def test_an_agent_connects_to_all_three_servers_behind_a_load_balancer(
    programs: Programs, pairing: Pairing, web: HttpEndpoint
) -> None:
    """3 connections, 2 after one server is killed, 3 with its replacement; all servers serve."""
    flags = {"server-count": 3}
    servers = [programs.server(pairing.server, flags=flags) for _ in range(3)]
    balancer = Balancer([server.agent_port for server in servers])
    agent = programs.agent(balancer.port, pairing.agent, flags={"sync-forever": True})
    try:
        agent.wait_for_servers(3)
        gone = servers.pop()
        balancer.ports.remove(gone.agent_port)
        gone.kill()
        agent.wait_for_servers(2)
        servers.append(programs.server(pairing.server, flags=flags))
        balancer.ports.append(servers[-1].agent_port)
        agent.wait_for_servers(3)
        for server in servers:
            assert fetch(server, web.address) == HELLO
    finally:
        balancer.close()


def test_readyz_requires_a_connected_peer(programs: Programs, pairing: Pairing, mode: str) -> None:
    """A server is ready with an agent, an agent with a server, and neither without."""
    port = free_port()
    agent = programs.agent(port, pairing.agent)
    status, body = agent.health.get("/readyz")
    assert (status, "no servers connected" in body) == (503, True)
    server = programs.server(pairing.server, mode, flags={"agent-port": port})
    server.wait_until_ready()
    until(lambda: agent.health.get("/readyz") == (200, "ok"), "the agent is ready")
    verbose = "[+]ping ok\n[+]server-connected ok\ncheck passed\n"
    assert agent.health.get("/readyz?verbose") == (200, verbose)
    agent.kill()
    until(
        lambda: server.health.get("/readyz") == (500, "no connection to any proxy agent"),
        "the server is not ready",
    )


def test_a_draining_agent_still_serves_when_it_is_the_only_one(
    programs: Programs, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    server, agent = programs.pair(pairing, mode)
    drains = {"packet_type": "DRAIN", "segment": "from_agent"}

    def drained() -> bool:
        # The original agent announces its drain only behind the next packet that it receives.
        assert fetch(server, web.address) == HELLO
        return server.metric("stream_packets_total", **drains) == 1

    agent.terminate()
    until(drained, "the server knows of the drain")
    assert fetch(server, web.address) == HELLO


def test_small_reads_return_the_bytes_in_order(
    programs: Programs, pairing: Pairing, mode: str, endpoint: Callable[..., Endpoint]
) -> None:
    """An echo is read in pieces of 10 bytes."""
    server, agent = programs.pair(pairing, mode)
    tunnel = dial(server, endpoint(echo).address)
    sent = pattern(4000)
    tunnel.send(sent)
    assert b"".join(receive(tunnel, 10) for _ in range(400)) == sent
    tunnel.close()
    wait_until_idle(server, agent)


@pytest.mark.parametrize("kind", ["ours", pytest.param("go", marks=pytest.mark.interop)])
def test_the_agent_offers_the_configured_alpn_protocols(programs: Programs, kind: str) -> None:
    """A server that accepts only the configured protocol can negotiate it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(
        programs.certificates.path("server.crt"), programs.certificates.path("server.key")
    )
    context.set_alpn_protocols(["tunnel/1"])
    chosen: list[str | None] = []

    def handshake(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as tls:
            chosen.append(tls.selected_alpn_protocol())

    listener = Endpoint(handshake)
    programs.agent(listener.port, kind, flags={"alpn-proto": "tunnel/1"})
    until(lambda: "tunnel/1" in chosen, "the protocol was negotiated")
    listener.close()


@pytest.mark.interop
def test_original_and_our_agents_share_the_dials(programs: Programs, mode: str, web: HttpEndpoint) -> None:
    """As during a rolling replacement of the original agents."""
    server = programs.server("ours", mode)
    agents = [programs.agent(server, "go"), programs.agent(server, "ours")]
    server.wait_for_agents(2)
    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(lambda _: fetch(server, web.address), range(60))) == {HELLO}
    assert all(dials_seen(agent) > 0 for agent in agents)
