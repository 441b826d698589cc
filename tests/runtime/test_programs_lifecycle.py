"""Ends and new beginnings: drains, graceful stops, sudden deaths under load, and what follows them."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.process_endpoints import Endpoint, Gate, HttpEndpoint, echo
from tests.support.process_pairings import with_our_server
from tests.support.process_program import until
from tests.support.process_site import Pairing, Server, Site
from tests.support.process_tunnels import (
    ConnectTunnel,
    RefusedDialError,
    Tunnel,
    dial,
    fetch,
    http_request,
    receive,
    receive_all,
)

HELLO = b"hello from the endpoint"
Endpoints = Callable[..., Endpoint]


# --- the agent drains


def test_a_drained_agent_finishes_what_it_has_and_leaves(site: Site, endpoint: Endpoints) -> None:
    """SIGTERM: not ready any more, the request in flight completes, then it exits by itself with 0."""
    server, agent = site.pair()
    gate = Gate()
    tunnel = dial(server, endpoint(gate).address)
    tunnel.send(b"take your time")
    until(lambda: agent.metric("open_endpoint_connections") == 1, "the endpoint is connected")
    agent.terminate()
    until(lambda: agent.health.get("/readyz")[0] == 503, "the agent is not ready any more")
    until(lambda: server.health.status()["agents"][0]["draining"], "the server knows")
    gate.opened.set()
    assert receive(tunnel, 14) == b"take your time"
    tunnel.close()
    assert agent.wait() == 0
    server.wait_for_agents(0)


def test_new_dials_avoid_a_draining_agent(site: Site, endpoint: Endpoints, web: HttpEndpoint) -> None:
    """With another agent there, the draining one gets nothing new."""
    server, leaving = site.pair()
    staying = site.agent(server)
    server.wait_for_agents(2)
    tunnels = [dial(server, endpoint(echo).address) for _ in range(10)]  # some on each
    leaving.terminate()
    until(lambda: any(a["draining"] for a in server.health.status()["agents"]), "the server knows")
    name = {"packet_type": "DIAL_REQ", "segment": "to_agent"}
    before = staying.metric("stream_packets_total", **name)
    for _ in range(10):
        assert fetch(server, web.address) == HELLO
    assert staying.metric("stream_packets_total", **name) == before + 10
    for tunnel in tunnels:
        tunnel.send(b"on")
        assert receive(tunnel, 2) == b"on"
        tunnel.close()
    assert leaving.wait() == 0


def test_a_second_signal_ends_a_drain_at_once(site: Site, endpoint: Endpoints) -> None:
    """Whoever insists is heard, although a connection is open."""
    server, agent = site.pair(agent_flags={"drain-timeout": "10m"})
    tunnel = dial(server, endpoint(echo).address)
    agent.terminate()
    until(lambda: agent.health.get("/readyz")[0] == 503, "the agent drains")
    assert agent.alive
    agent.terminate()
    assert agent.wait() == 0
    tunnel.close()


def test_a_drain_ends_when_its_time_is_up(site: Site, endpoint: Endpoints) -> None:
    """`--drain-timeout` bounds the drain even with open connections."""
    server, agent = site.pair(agent_flags={"drain-timeout": "500ms"})
    tunnel = dial(server, endpoint(echo).address)
    agent.terminate()
    assert agent.wait() == 0
    assert ended(tunnel)


# --- the server stops


@with_our_server
def test_a_graceful_stop_lets_connections_finish(
    site: Site, pairing: Pairing, endpoint: Endpoints, mode: str
) -> None:
    """Within the limit: what runs completes, new dials are refused, and the exit code is 0."""
    server, agent = site.pair(pairing, mode, server_flags={"graceful-shutdown-timeout": "60s"})
    tunnel = dial(server, endpoint(echo).address)
    server.terminate()
    until(lambda: server.health.get("/readyz")[0] == 500, "the server is not ready any more")
    with pytest.raises((RefusedDialError, ConnectionError, FileNotFoundError)):
        dial(server, endpoint(echo).address)
    # Again and again, for several times as long as an agent takes to look after its connection.
    for _ in range(20):
        tunnel.send(b"still served")
        assert receive(tunnel, 12) == b"still served"
        assert agent.health.get("/healthz")[0] == 200
        time.sleep(0.05)
    tunnel.close()
    assert server.wait() == 0


def test_a_graceful_stop_waits_until_the_callers_have_taken_everything(
    site: Site, endpoint: Endpoints
) -> None:
    """Also when the connection itself is over: a slow reader gets the last byte before we go."""
    server, _ = site.pair(server_flags={"graceful-shutdown-timeout": "60s"})
    size = 700 * 1024

    def answer_at_the_end(sock: socket.socket) -> None:
        while sock.recv(1000):
            pass
        sock.sendall(bytes(size))

    tunnel = ConnectTunnel.dial(server, endpoint(answer_at_the_end).address)
    tunnel.send(b"question")
    tunnel.finish()
    got = 0
    while server.health.status()["routes"]:
        got += len(tunnel.recv(20_000))
    server.terminate()
    until(lambda: server.health.get("/readyz")[0] == 500, "the server stops")
    assert got + len(receive_all(tunnel)) == size
    assert server.wait() == 0


def test_a_drained_agent_waits_until_the_endpoints_have_taken_everything(site: Site) -> None:
    """The caller is gone, and the endpoint reads slowly: it still gets the last byte."""
    server, agent = site.pair(agent_flags={"drain-timeout": "60s"})
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        tunnel = ConnectTunnel.dial(server, f"127.0.0.1:{listener.getsockname()[1]}")
        endpoint, _ = listener.accept()
        endpoint.settimeout(20)
        size, sent, got = 8_000_000, 0, 0
        tunnel.sock.setblocking(False)
        while sent < size:
            try:
                sent += tunnel.sock.send(bytes(min(65536, size - sent)))
            except BlockingIOError:
                got += len(endpoint.recv(65536))
        tunnel.close()
        while agent.health.status()["endpoints"]:
            got += len(endpoint.recv(65536))
        agent.terminate()
        until(lambda: agent.health.get("/readyz")[0] == 503, "the agent drains")
        while data := endpoint.recv(65536):
            got += len(data)
        endpoint.close()
    assert got == size
    assert agent.wait() == 0


def test_agents_are_notified_when_a_graceful_stop_begins(site: Site, endpoint: Endpoints) -> None:
    """They look for another server at once, while what runs over this one goes on."""
    server, agent = site.pair(server_flags={"graceful-shutdown-timeout": "60s"})
    tunnel = dial(server, endpoint(echo).address)
    server.terminate()
    agent.wait_for_servers(0)
    tunnel.send(b"still served")
    assert receive(tunnel, 12) == b"still served"
    # Nor is it forgotten when the agent itself goes: the endpoint is reset.
    agent.terminate()
    until(lambda: agent.health.get("/readyz")[0] == 503, "the agent drains")
    agent.terminate()
    assert agent.wait() == 0
    assert ended(tunnel)


def test_a_graceful_stop_ends_when_its_time_is_up(site: Site, endpoint: Endpoints, mode: str) -> None:
    server, _ = site.pair(mode=mode, server_flags={"graceful-shutdown-timeout": "500ms"})
    tunnel = dial(server, endpoint(echo).address)
    server.terminate()
    assert server.wait() == 0
    assert ended(tunnel)


def test_a_second_signal_ends_a_graceful_stop_at_once(site: Site, endpoint: Endpoints) -> None:
    server, _ = site.pair(server_flags={"graceful-shutdown-timeout": "10m"})
    tunnel = dial(server, endpoint(echo).address)
    server.terminate()
    until(lambda: server.health.get("/readyz")[0] == 500, "the server stops")
    server.terminate()
    assert server.wait() == 1
    assert ended(tunnel)


def test_without_a_limit_the_server_stops_at_once(site: Site, endpoint: Endpoints) -> None:
    """As the original does with --graceful-shutdown-timeout=0."""
    server, agent = site.pair()
    tunnel = dial(server, endpoint(echo).address)
    server.terminate()
    assert server.wait() == 0
    assert ended(tunnel)
    agent.wait_for_servers(0)
    until(lambda: agent.metric("open_endpoint_connections") == 0, "the endpoint is released")


def test_both_programs_take_ctrl_c_as_well(site: Site) -> None:
    server, agent = site.pair()
    for program in (agent, server):
        program.signal(signal.SIGINT)
        assert program.wait() == 0


# --- sudden deaths under load


class Load:
    """Callers that ask again and again; every failure must come at once, none may hang."""

    def __init__(self, server: Server, address: str, callers: int = 10) -> None:
        self.answered = 0
        self.failed = 0
        self.hung = 0
        self._server = server
        self._address = address
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(callers)
        self._running = [self._pool.submit(self._call) for _ in range(callers)]

    def _call(self) -> None:
        while not self._stop.is_set():
            try:
                tunnel = dial(self._server, self._address, patience=15)
                try:
                    http_request(tunnel, "/bytes/200000")
                    http_request(tunnel, "/hello")
                finally:
                    tunnel.close()
            except TimeoutError:
                self.hung += 1
            except (RefusedDialError, OSError):
                self.failed += 1
                time.sleep(0.02)  # be no busy loop while nothing can be reached
            else:
                self.answered += 1

    def goes_on(self) -> None:
        """Wait until more answers have come."""
        wanted = self.answered + 20
        until(lambda: self.answered >= wanted, "the load is served")

    def end(self) -> None:
        self._stop.set()
        for call in self._running:
            call.result(timeout=20)
        self._pool.shutdown()


def test_an_agent_killed_under_load_leaves_nothing_hanging(site: Site, mode: str, web: HttpEndpoint) -> None:
    """Every frontend gets an error in time, and traffic flows again with the next agent."""
    server, agent = site.pair(mode=mode)
    load = Load(server, web.address)
    load.goes_on()
    agent.kill()
    until(lambda: load.failed > 0, "callers notice")
    site.agent(server)
    load.goes_on()
    load.end()
    assert load.hung == 0
    until(lambda: server.metric("established_connections") == 0, "nothing is left")


def test_a_server_killed_under_load_leaves_nothing_hanging(site: Site, mode: str, web: HttpEndpoint) -> None:
    """Every frontend gets an error in time; the agent lets go of its endpoints and finds the next server."""
    server, agent = site.pair(mode=mode)
    load = Load(server, web.address)
    load.goes_on()
    server.kill()
    until(lambda: load.failed > 0, "callers notice")
    until(lambda: agent.metric("open_endpoint_connections") == 0, "the endpoints are released")
    again = site.server(mode=mode, flags={"agent-port": server.agent_port, "uds-name": server.uds})
    load.goes_on()
    load.end()
    assert load.hung == 0
    until(lambda: again.metric("established_connections") == 0, "nothing is left")


def test_dials_move_to_another_agent_when_theirs_dies(site: Site, web: HttpEndpoint) -> None:
    """A dial that an agent died with is tried once more elsewhere; the caller notices nothing."""
    server, doomed = site.pair(agent_flags={"agent-id": "doomed"})
    doomed.pause()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(fetch, server, web.address)
        until(lambda: server.metric("pending_backend_dials") == 1, "the dial is with the doomed agent")
        site.agent(server, flags={"agent-id": "healthy"})
        server.wait_for_agents(2)
        doomed.kill()
        assert answer.result(timeout=20) == HELLO
    assert server.metric("dial_retries_total") == 1


def test_a_pending_dial_fails_at_once_when_the_only_agent_dies(site: Site, mode: str) -> None:
    """Not after 30 s, as the original lets its callers wait."""
    server, agent = site.pair(mode=mode)
    agent.pause()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(dial, server, "127.0.0.1:1")
        until(lambda: server.metric("pending_backend_dials") == 1, "the dial is pending")
        agent.kill()
        with pytest.raises(RefusedDialError):
            answer.result(timeout=20)
    assert server.metric("dial_failure_count", reason="backend_close") == 1


def test_a_dial_that_no_agent_answers_ends_after_the_limit(site: Site, mode: str) -> None:
    """`--backend-dial-timeout`: 504 in HTTP, counted, and nothing stays pending."""
    server, agent = site.pair(mode=mode, server_flags={"backend-dial-timeout": "500ms"})
    agent.pause()
    with pytest.raises(RefusedDialError, match="timed out waiting for backend dial") as refused:
        dial(server, "127.0.0.1:1")
    assert refused.value.status == (504 if mode == "http-connect" else 0)
    assert server.metric("pending_backend_dials") == 0
    assert server.metric("dial_failure_count", reason="backend_dial_timeout") == 1
    agent.go_on()


@pytest.mark.slow
@pytest.mark.parametrize("frozen", ["agent", "server"])
def test_a_silent_peer_is_noticed_by_keepalive(site: Site, frozen: str) -> None:
    """A frozen machine sends no FIN: the other side pings, hears nothing for 20 s, and lets go."""
    server, agent = site.pair(server_flags={"keepalive-time": "10s"}, agent_flags={"keepalive-time": "10s"})
    (agent if frozen == "agent" else server).pause()
    if frozen == "agent":
        server.wait_for_agents(0, seconds=60)
        agent.go_on()
        server.wait_for_agents(1)
    else:
        agent.wait_for_servers(0, seconds=60)
        server.go_on()
        agent.wait_for_servers(1)


def ended(tunnel: Tunnel) -> bool:
    """Whether the tunnel is over: its end or an error, but no silence."""
    try:
        return tunnel.recv() == b""
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        tunnel.abandon()
