"""The acceptance list of Konnectivity's own integration tests, by number, for every pairing.

I1 to I20 are the behaviours that upstream's suite demands. Here they are demanded of our pair,
of our server with the original agent, and of the original server with our agent; upstream's
suite itself runs in `test_upstream_suite.py`.
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
from tests.support.process_site import Agent, Pairing, Server, Site
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

MIB = 1 << 20
HELLO = b"hello from the endpoint"
# A label of more than 63 characters cannot exist, which every resolver knows without asking anyone.
NO_SUCH_NAME = f"{'x' * 64}.invalid"


def failures(server: Server) -> dict[str, float]:
    """The reasons for which dials failed."""
    name = "konnectivity_network_proxy_server_dial_failure_count"
    return {
        key.partition('"')[2].rstrip('"}'): value
        for key, value in server.health.metrics().items()
        if key.startswith(name) and value
    }


def dials_seen(agent: Agent) -> float:
    return agent.metric("stream_packets_total", packet_type="DIAL_REQ", segment="to_agent")


def nothing_is_left(server: Server, agent: Agent) -> None:
    """Every table is empty again (I21)."""
    until(lambda: server.metric("established_connections") == 0, "no established connection")
    until(lambda: server.metric("pending_backend_dials") == 0, "no pending dial")
    until(lambda: agent.metric("open_endpoint_connections") == 0, "no open endpoint")
    until(lambda: server.metric("http_connections") == 0, "no open CONNECT request")
    until(lambda: server.metric("grpc_connections", service_method="Proxy") == 0, "no Proxy stream")


def test_i1_a_request_goes_through_and_nothing_precedes_it(
    site: Site, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """I1, I21: the body comes back; a 200 comes alone; nothing is left and no failure is counted."""
    server, agent = site.pair(pairing, mode)
    tunnel = dial(server, web.address)
    if isinstance(tunnel, ConnectTunnel):
        assert tunnel.extra == b""
    assert http_request(tunnel, "/hello") == HELLO
    tunnel.close()
    nothing_is_left(server, agent)
    assert failures(server) == {}


def test_i2_i3_a_refused_dial_says_connection_refused(site: Site, pairing: Pairing, mode: str) -> None:
    """I2, I3: the caller reads `connection refused` (502 in HTTP), both sides count it once."""
    server, agent = site.pair(pairing, mode)
    with pytest.raises(RefusedDialError, match="connection refused") as refused:
        dial(server, f"127.0.0.1:{free_port()}")
    assert refused.value.status == (502 if mode == "http-connect" else 0)
    assert failures(server) == {"error_response": 1}
    assert agent.metric("endpoint_dial_failure_total", reason="unknown") == 1
    nothing_is_left(server, agent)


def test_i4_a_name_that_does_not_exist_says_no_such_host(site: Site, pairing: Pairing, mode: str) -> None:
    """I4: `no such host`, 502 in HTTP, counted as `unknown` by the agent."""
    server, agent = site.pair(pairing, mode)
    with pytest.raises(RefusedDialError, match="no such host") as refused:
        dial(server, f"{NO_SUCH_NAME}:80")
    assert refused.value.status == (502 if mode == "http-connect" else 0)
    assert agent.metric("endpoint_dial_failure_total", reason="unknown") == 1


def test_i5_a_caller_that_gives_up_leaves_nothing_behind(
    site: Site, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """I5: a request is cancelled while the endpoint is still thinking."""
    server, agent = site.pair(pairing, mode)
    tunnel = dial(server, web.address)
    tunnel.send(b"GET /wait HTTP/1.1\r\nHost: endpoint\r\n\r\n")
    until(lambda: agent.metric("open_endpoint_connections") == 1, "the endpoint is connected")
    tunnel.close()
    nothing_is_left(server, agent)


def test_i6_a_grpc_dial_that_is_called_off_is_counted_as_the_frontends_doing(
    site: Site, pairing: Pairing
) -> None:
    """I6: the agent does not answer, the caller cancels: `frontend_close`, and no pending dial."""
    server, agent = site.pair(pairing, "grpc")
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
def test_i6_a_connect_client_that_leaves_while_it_waits_is_noticed(site: Site, pairing: Pairing) -> None:
    """I6 for HTTP CONNECT, where the original server does not look at a client that waits."""
    server, agent = site.pair(pairing)
    agent.pause()
    sock = frontend_socket(server)
    sock.sendall(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    until(lambda: server.metric("pending_backend_dials") == 1, "the dial is pending")
    sock.close()
    until(lambda: failures(server) == {"frontend_close": 1}, "the cancellation is counted")
    until(lambda: server.metric("pending_backend_dials") == 0, "no dial is pending")
    agent.go_on()


def test_i7_fifty_cancelled_requests_leave_nothing_behind(
    site: Site, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """I7: all of them at once, each cancelled while its answer is outstanding."""
    server, agent = site.pair(pairing, mode)

    def cancelled(_: int) -> None:
        tunnel = dial(server, web.address)
        tunnel.send(b"GET /wait HTTP/1.1\r\nHost: endpoint\r\n\r\n")
        tunnel.close()

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(cancelled, range(50)))
    nothing_is_left(server, agent)


@pytest.mark.slow
def test_i8_an_endpoint_that_does_not_answer_times_out(site: Site, pairing: Pairing, mode: str) -> None:
    """I8: `i/o timeout` after the agent's 5 s (504 in HTTP), counted as `timeout` by the agent."""
    server, agent = site.pair(pairing, mode)
    # A listener whose queue is full drops further SYNs: a black hole that stays on this machine.
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


def test_i9_a_large_response_arrives_whole(
    site: Site, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """I9: 20 MiB in one answer."""
    server, _ = site.pair(pairing, mode)
    assert fetch(server, web.address, f"/bytes/{20 * MIB}") == pattern(20 * MIB)


def test_i10_large_responses_in_parallel_arrive_whole(
    site: Site, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """I10: ten times 10 MiB at once."""
    server, _ = site.pair(pairing, mode)
    wanted = hashlib.sha256(pattern(10 * MIB)).digest()
    with ThreadPoolExecutor(10) as pool:
        bodies = pool.map(lambda _: fetch(server, web.address, f"/bytes/{10 * MIB}"), range(10))
        assert all(hashlib.sha256(body).digest() == wanted for body in bodies)


def test_i11_a_hundred_requests_over_two_agents_get_their_own_answers(
    site: Site, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """I11: no response reaches another caller."""
    server, first = site.pair(pairing, mode)
    second = site.agent(server, pairing.agent)
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


def test_i12_a_second_agent_with_the_same_id_does_not_break_a_running_request(
    site: Site, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """I12: the second stream of one agent id comes and goes; the first connection goes on."""
    server = site.server(pairing.server, mode)
    site.agent(server, pairing.agent, flags={"agent-id": "twin"})
    server.wait_until_ready()
    tunnel = dial(server, web.address)
    assert http_request(tunnel, "/hello") == HELLO
    twin = site.agent(server, pairing.agent, flags={"agent-id": "twin"})
    until(lambda: server.metric("grpc_connections", service_method="Connect") == 2, "two streams")
    assert http_request(tunnel, "/hello") == HELLO
    twin.kill()
    until(lambda: server.metric("grpc_connections", service_method="Connect") == 1, "one stream")
    assert http_request(tunnel, "/hello") == HELLO
    tunnel.close()


def test_i13_i14_a_lost_agent_fails_its_connections_at_once_and_a_new_one_serves(
    site: Site, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """I13: a kept-alive connection fails fast, not by a timeout. I14: a new agent serves again."""
    server, agent = site.pair(pairing, mode)
    tunnel = dial(server, web.address)
    assert http_request(tunnel, "/hello") == HELLO
    agent.kill()
    # A hang would end in the socket's timeout, which is not a ConnectionError.
    with pytest.raises(ConnectionError):
        http_request(tunnel, "/hello")
    tunnel.close()
    site.agent(server, pairing.agent)
    server.wait_until_ready()
    assert fetch(server, web.address) == HELLO


def test_i15_an_agent_finds_its_server_again(site: Site, pairing: Pairing, web: HttpEndpoint) -> None:
    """I15: 1, 0, 1 connections while the server restarts on the same port."""
    server, agent = site.pair(pairing)
    agent.wait_for_servers(1)
    server.kill()
    agent.wait_for_servers(0)
    ports = {"agent-port": server.agent_port, "uds-name": server.uds}
    again = site.server(pairing.server, flags=ports)
    agent.wait_for_servers(1)
    again.wait_until_ready()
    assert fetch(again, web.address) == HELLO


def test_i16_three_servers_behind_a_balancer_are_all_found(
    site: Site, pairing: Pairing, web: HttpEndpoint
) -> None:
    """I16: the agent reaches 3, then 2 when one dies, then 3 with its replacement; all of them serve."""
    flags = {"server-count": 3}
    servers = [site.server(pairing.server, flags=flags) for _ in range(3)]
    balancer = Balancer([server.agent_port for server in servers])
    agent = site.agent(balancer.port, pairing.agent, flags={"sync-forever": True})
    try:
        agent.wait_for_servers(3)
        gone = servers.pop()
        balancer.ports.remove(gone.agent_port)
        gone.kill()
        agent.wait_for_servers(2)
        servers.append(site.server(pairing.server, flags=flags))
        balancer.ports.append(servers[-1].agent_port)
        agent.wait_for_servers(3)
        for server in servers:
            assert fetch(server, web.address) == HELLO
    finally:
        balancer.close()


def test_i17_ready_means_connected(site: Site, pairing: Pairing, mode: str) -> None:
    """I17: a server is ready with an agent, an agent with a server, and neither without."""
    port = free_port()
    agent = site.agent(port, pairing.agent)
    status, body = agent.health.get("/readyz")
    assert (status, "no servers connected" in body) == (503, True)
    server = site.server(pairing.server, mode, flags={"agent-port": port})
    server.wait_until_ready()
    until(lambda: agent.health.get("/readyz") == (200, "ok"), "the agent is ready")
    verbose = "[+]ping ok\n[+]server-connected ok\ncheck passed\n"
    assert agent.health.get("/readyz?verbose") == (200, verbose)
    agent.kill()
    until(
        lambda: server.health.get("/readyz") == (500, "no connection to any proxy agent"),
        "the server is not ready",
    )


def test_i18_a_drained_agent_still_serves_when_it_is_the_only_one(
    site: Site, pairing: Pairing, mode: str, web: HttpEndpoint
) -> None:
    """I18: new requests after the drain fall back to it."""
    server, agent = site.pair(pairing, mode)
    drains = {"packet_type": "DRAIN", "segment": "from_agent"}

    def drained() -> bool:
        # The original agent announces its drain only behind the next packet that it receives.
        assert fetch(server, web.address) == HELLO
        return server.metric("stream_packets_total", **drains) == 1

    agent.terminate()
    until(drained, "the server knows of the drain")
    assert fetch(server, web.address) == HELLO


def test_i19_bytes_come_in_order_for_small_reads(
    site: Site, pairing: Pairing, mode: str, endpoint: Callable[..., Endpoint]
) -> None:
    """I19: an echo read in pieces of 10 bytes; closing it is not an error."""
    server, agent = site.pair(pairing, mode)
    tunnel = dial(server, endpoint(echo).address)
    sent = pattern(4000)
    tunnel.send(sent)
    heard = b"".join(receive(tunnel, 10) for _ in range(400))
    assert heard == sent
    tunnel.close()
    nothing_is_left(server, agent)


@pytest.mark.parametrize("kind", ["ours", pytest.param("go", marks=pytest.mark.interop)])
def test_i20_the_agent_offers_the_configured_alpn_names(site: Site, kind: str) -> None:
    """I20: a server that only speaks the configured name gets it, before h2."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(site.certificates.path("server.crt"), site.certificates.path("server.key"))
    context.set_alpn_protocols(["bridge/1"])
    chosen: list[str | None] = []

    def shake_hands(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as tls:
            chosen.append(tls.selected_alpn_protocol())

    listener = Endpoint(shake_hands)
    site.agent(listener.port, kind, flags={"alpn-proto": "bridge/1"})
    until(lambda: "bridge/1" in chosen, "the name was agreed on")
    listener.close()


@pytest.mark.interop
def test_agents_of_both_kinds_share_the_work(site: Site, mode: str, web: HttpEndpoint) -> None:
    """A server with an original agent and one of ours, as in a rolling replacement."""
    server = site.server("ours", mode)
    agents = [site.agent(server, "go"), site.agent(server, "ours")]
    server.wait_for_agents(2)
    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(lambda _: fetch(server, web.address), range(60))) == {HELLO}
    assert all(dials_seen(agent) > 0 for agent in agents)
