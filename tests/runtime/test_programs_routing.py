"""Routing of the real programs: strategies, IPv6, names, and refused destinations."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.process_endpoints import Endpoint, HttpEndpoint, echo
from tests.support.process_program import free_port, until
from tests.support.process_tunnels import ConnectTunnel, GrpcTunnel, RefusedDialError, dial, fetch, receive
from tests.support.tunnel_programs import Agent, Programs, Web

HELLO = b"hello from the endpoint"
Endpoints = Callable[..., Endpoint]


def dials(agent: Agent) -> float:
    return agent.metric("stream_packets_total", packet_type="DIAL_REQ", segment="to_agent")


# --- strategies


@pytest.mark.parametrize(
    ("strategies", "matching", "other"),
    [
        ("cidr", "cidr=127.0.0.0/30", "cidr=127.0.0.0/8"),  # the longest prefix
        ("destHost,default", "ipv4=127.0.0.1", "ipv4=10.0.0.1"),
    ],
)
def test_a_dial_is_sent_to_the_agent_whose_identifiers_match_best(
    programs: Programs, web: HttpEndpoint, strategies: str, matching: str, other: str
) -> None:
    server = programs.server(flags={"proxy-strategies": strategies})
    agents = [programs.agent(server, flags={"agent-identifiers": each}) for each in (other, matching)]
    server.wait_for_agents(2)
    for _ in range(5):
        assert fetch(server, web.address) == HELLO
    assert [dials(agent) for agent in agents] == [0, 5]


def test_cidr_alone_refuses_a_destination_outside_all_networks(programs: Programs, web: HttpEndpoint) -> None:
    """Refused as `No agent available`, and counted, in HTTP CONNECT too."""
    server = programs.server(flags={"proxy-strategies": "cidr", "first-agent-timeout": "0"})
    programs.agent(server, flags={"agent-identifiers": "cidr=10.0.0.0/8"})
    server.wait_for_agents(1)
    with pytest.raises(RefusedDialError, match="No agent available") as refused:
        fetch(server, web.address)
    assert refused.value.status == 500
    assert server.metric("dial_failure_count", reason="no_agent") == 1
    server.wait_for_log("dial refused")


@pytest.mark.parametrize("mode", ["http-connect", "grpc"])
def test_a_call_right_after_the_servers_start_waits_for_the_first_agent(
    programs: Programs, mode: str, web: HttpEndpoint
) -> None:
    """So that a restart of the server fails as few calls as possible."""
    server = programs.server(mode=mode, flags={"first-agent-timeout": "20s"})
    with ThreadPoolExecutor(1) as caller:
        answer = caller.submit(fetch, server, web.address)
        until(lambda: server.metric("pending_backend_dials") == 1, "the call waits")
        assert [row["waitingFor"] for row in server.admin.status()["connections"]] == ["agent to connect"]
        programs.agent(server)
        assert answer.result() == HELLO


def test_a_server_is_ready_if_any_strategy_can_serve(programs: Programs, web: HttpEndpoint) -> None:
    """`destHost,default` serves with an agent that advertises no host, so it is ready."""
    server = programs.server(flags={"proxy-strategies": "destHost,default"})
    programs.agent(server)
    server.wait_until_ready()
    assert fetch(server, web.address) == HELLO


def test_direct_dials_from_the_servers_own_host(programs: Programs, mode: str, web: HttpEndpoint) -> None:
    """Inside --direct-cidrs no agent is needed."""
    loopback = "127.0.0.0/8,::1/128"
    flags = {"proxy-strategies": "direct", "direct-cidrs": loopback, "allow-destinations": loopback}
    server = programs.server(mode=mode, flags=flags)
    assert fetch(server, web.address) == HELLO
    until(lambda: server.metric("established_connections") == 0, "the connection is closed")


def test_direct_is_not_used_outside_its_networks(programs: Programs, web: HttpEndpoint) -> None:
    """Without another strategy the dial is refused."""
    flags = {"proxy-strategies": "direct", "direct-cidrs": "10.0.0.0/8"}
    server = programs.server(flags=flags)
    with pytest.raises(RefusedDialError) as refused:
        fetch(server, web.address)
    assert refused.value.status == 500


# --- addresses


def test_ipv6_all_the_way(programs: Programs, mode: str) -> None:
    """The agent port on ::1, the agent dialling it there, and an IPv6 endpoint behind it."""
    web = HttpEndpoint("::1")
    server = programs.server(mode=mode, flags={"agent-bind-address": "::1"})
    programs.agent(server, flags={"proxy-server-host": "::1"})
    server.wait_until_ready()
    assert fetch(server, web.address) == HELLO
    web.close()


def test_ipv6_health_ports(programs: Programs) -> None:
    server = programs.server(flags={"health-bind-address": ""})
    assert Web(server.health.port, "[::1]").get("/healthz") == (200, "ok")


def test_a_name_is_dialled_by_the_agent(programs: Programs, mode: str, web: HttpEndpoint) -> None:
    """The agent resolves the name."""
    server, _ = programs.pair(mode=mode)
    assert fetch(server, f"localhost:{web.port}") == HELLO


def test_a_large_first_write_and_many_small_ones_arrive(programs: Programs, endpoint: Endpoints) -> None:
    """Bytes keep their order for all sizes of writes."""
    server, _ = programs.pair()
    tunnel = dial(server, endpoint(echo).address)
    sent = b"".join(bytes([number % 256]) * number for number in range(500))
    for number in range(500):
        tunnel.send(bytes([number % 256]) * number)
    assert receive(tunnel, len(sent)) == sent
    tunnel.close()


@pytest.mark.parametrize("protocol", ["unix", "udp", "tcp-but-not-really", ""])
def test_only_tcp_is_dialled(programs: Programs, protocol: str) -> None:
    """A frontend cannot make the agent open local sockets or send datagrams."""
    server, _ = programs.pair(mode="grpc")
    with pytest.raises(RefusedDialError):
        GrpcTunnel.dial(server, "/var/run/docker.sock", protocol=protocol)


@pytest.mark.parametrize("target", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:0", ":80"])
def test_an_invalid_destination_is_refused(programs: Programs, target: str) -> None:
    """The server stays ready."""
    server, _ = programs.pair()
    with pytest.raises(RefusedDialError):
        ConnectTunnel.dial(server, target)
    assert server.health.get("/readyz")[0] == 200


# --- several servers


def test_an_agent_connects_to_every_configured_host(programs: Programs, web: HttpEndpoint) -> None:
    """Three servers on three addresses, and one agent configured with all of them."""
    port = free_port()
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    servers = [
        programs.server(
            flags={
                "agent-bind-address": host,
                "agent-port": port,
                "server-count": 3,
                "uds-name": programs.folder / host,
            }
        )
        for host in hosts
    ]
    agent = programs.agent(port, flags={"proxy-server-host": ",".join(hosts)})
    agent.wait_for_servers(3)
    assert agent.metric("known_server_count") == 3
    for server in servers:
        server.wait_until_ready()
        assert fetch(server, web.address) == HELLO
    servers[1].kill()
    agent.wait_for_servers(2)
    again = {"agent-bind-address": hosts[1], "agent-port": port, "server-count": 3}
    programs.server(flags=again)
    agent.wait_for_servers(3)


def test_a_server_that_never_answers_does_not_delay_connections_to_others(
    programs: Programs, web: HttpEndpoint
) -> None:
    """It completes the TLS handshake and then sends nothing."""
    port = free_port()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(
        programs.certificates.path("server.crt"), programs.certificates.path("server.key")
    )
    context.set_alpn_protocols(["h2"])
    tried, over = threading.Event(), threading.Event()

    def keep_silent(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True):
            tried.set()
            over.wait(60)

    mute = Endpoint(keep_silent, "127.0.0.2", port)
    server = programs.server(flags={"agent-bind-address": "127.0.0.1", "agent-port": port})
    programs.agent(port, flags={"proxy-server-host": "127.0.0.2,127.0.0.1"})
    server.wait_until_ready()
    assert fetch(server, web.address) == HELLO
    assert tried.wait(20)
    over.set()
    mute.close()
