"""Drains, graceful stops, crashes under load, and recovery."""

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
from tests.support.tunnel_programs import Pairing, Programs, Server

HELLO = b"hello from the endpoint"
Endpoints = Callable[..., Endpoint]


# --- the agent drains


def test_a_draining_agent_finishes_open_connections_and_exits(
    programs: Programs, endpoint: Endpoints
) -> None:
    """SIGTERM: not ready any more, the request in flight completes, then it exits by itself with 0."""
    server, agent = programs.pair()
    gate = Gate()
    tunnel = dial(server, endpoint(gate).address)
    tunnel.send(b"take your time")
    until(lambda: agent.metric("open_endpoint_connections") == 1, "the endpoint is connected")
    agent.terminate()
    until(lambda: agent.health.get("/readyz")[0] == 503, "the agent is not ready any more")
    until(lambda: server.admin.status()["agents"][0]["draining"], "the server knows")
    gate.opened.set()
    assert receive(tunnel, 14) == b"take your time"
    tunnel.close()
    assert agent.wait() == 0
    server.wait_for_agents(0)


def test_new_dials_avoid_a_draining_agent(programs: Programs, endpoint: Endpoints, web: HttpEndpoint) -> None:
    """With another agent connected, the draining one receives no new dial."""
    server, leaving = programs.pair()
    staying = programs.agent(server)
    server.wait_for_agents(2)
    tunnels = [dial(server, endpoint(echo).address) for _ in range(10)]  # some on each
    leaving.terminate()
    until(lambda: any(a["draining"] for a in server.admin.status()["agents"]), "the server knows")
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


def test_a_second_signal_ends_a_drain_at_once(programs: Programs, endpoint: Endpoints) -> None:
    """Although a connection is open."""
    server, agent = programs.pair(agent_flags={"drain-timeout": "10m"})
    tunnel = dial(server, endpoint(echo).address)
    agent.terminate()
    until(lambda: agent.health.get("/readyz")[0] == 503, "the agent drains")
    assert agent.alive
    agent.terminate()
    assert agent.wait() == 0
    tunnel.close()


def test_a_drain_ends_after_its_time_limit(programs: Programs, endpoint: Endpoints) -> None:
    """`--drain-timeout` bounds the drain even with open connections."""
    server, agent = programs.pair(agent_flags={"drain-timeout": "500ms"})
    tunnel = dial(server, endpoint(echo).address)
    agent.terminate()
    assert agent.wait() == 0
    assert ended(tunnel)


@pytest.mark.slow
def test_at_the_end_of_a_drain_connections_are_closed_between_two_calls(
    programs: Programs, endpoint: Endpoints
) -> None:
    """A kube-apiserver keeps its connection to a webhook: a call in flight at the limit would be cut."""
    server, agent = programs.pair(agent_flags={"drain-timeout": "6s"})
    paused, in_call = dial(server, endpoint(echo).address), dial(server, endpoint(Gate()).address)
    agent.terminate()
    until(lambda: agent.health.get("/readyz")[0] == 503, "the agent drains")
    for tunnel in (paused, in_call):
        tunnel.send(b"call")
    assert receive(paused, 4) == b"call"
    assert agent.wait() == 0
    assert ended(paused)
    assert ended(in_call)
    # The first was closed by the agent; the second lasted as long as the agent.
    assert server.admin.status()["closedConnections"] == {"endpoint": 1, "agent lost": 1}


# --- the server stops


@with_our_server
def test_a_graceful_stop_lets_connections_finish(
    programs: Programs, pairing: Pairing, endpoint: Endpoints, mode: str
) -> None:
    """Within the limit, open connections complete, new dials are refused, and the exit code is 0."""
    server, agent = programs.pair(pairing, mode, server_flags={"graceful-shutdown-timeout": "60s"})
    tunnel = dial(server, endpoint(echo).address)
    server.terminate()
    until(lambda: server.health.get("/readyz")[0] == 500, "the server is not ready any more")
    with pytest.raises((RefusedDialError, ConnectionError, FileNotFoundError)):
        dial(server, endpoint(echo).address)
    # For several times the interval at which an agent checks its connection.
    for _ in range(20):
        tunnel.send(b"still served")
        assert receive(tunnel, 12) == b"still served"
        assert agent.health.get("/healthz")[0] == 200
        time.sleep(0.05)
    tunnel.close()
    assert server.wait() == 0


def test_a_graceful_stop_waits_until_callers_have_read_everything(
    programs: Programs, endpoint: Endpoints
) -> None:
    """Also after the endpoint has closed: a slow reader receives the last byte."""
    server, _ = programs.pair(server_flags={"graceful-shutdown-timeout": "60s"})
    size = 700 * 1024

    def answer_at_the_end(sock: socket.socket) -> None:
        while sock.recv(1000):
            pass
        sock.sendall(bytes(size))

    tunnel = ConnectTunnel.dial(server, endpoint(answer_at_the_end).address)
    tunnel.send(b"question")
    tunnel.finish()
    got = 0
    while server.admin.status()["routes"]:
        got += len(tunnel.recv(20_000))
    server.terminate()
    until(lambda: server.health.get("/readyz")[0] == 500, "the server stops")
    assert got + len(receive_all(tunnel)) == size
    assert server.wait() == 0


def test_a_draining_agent_waits_until_endpoints_have_read_everything(programs: Programs) -> None:
    """The caller has closed, and a slow endpoint still receives the last byte."""
    server, agent = programs.pair(agent_flags={"drain-timeout": "60s"})
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
        while agent.admin.status()["routes"]:
            got += len(endpoint.recv(65536))
        agent.terminate()
        until(lambda: agent.health.get("/readyz")[0] == 503, "the agent drains")
        while data := endpoint.recv(65536):
            got += len(data)
        endpoint.close()
    assert got == size
    assert agent.wait() == 0


def test_agents_are_notified_when_a_graceful_stop_begins(programs: Programs, endpoint: Endpoints) -> None:
    """They dial another server at once, while open connections continue."""
    server, agent = programs.pair(server_flags={"graceful-shutdown-timeout": "60s"})
    tunnel = dial(server, endpoint(echo).address)
    server.terminate()
    agent.wait_for_servers(0)
    tunnel.send(b"still served")
    assert receive(tunnel, 12) == b"still served"
    # When the agent exits too, the endpoint is reset.
    agent.terminate()
    until(lambda: agent.health.get("/readyz")[0] == 503, "the agent drains")
    agent.terminate()
    assert agent.wait() == 0
    assert ended(tunnel)


def test_a_graceful_stop_ends_after_its_time_limit(
    programs: Programs, endpoint: Endpoints, mode: str
) -> None:
    server, _ = programs.pair(mode=mode, server_flags={"graceful-shutdown-timeout": "500ms"})
    tunnel = dial(server, endpoint(echo).address)
    server.terminate()
    assert server.wait() == 0
    assert ended(tunnel)


def test_a_second_signal_ends_a_graceful_stop_at_once(programs: Programs, endpoint: Endpoints) -> None:
    server, _ = programs.pair(server_flags={"graceful-shutdown-timeout": "10m"})
    tunnel = dial(server, endpoint(echo).address)
    server.terminate()
    until(lambda: server.health.get("/readyz")[0] == 500, "the server stops")
    server.terminate()
    assert server.wait() == 1
    assert ended(tunnel)


def test_without_a_limit_the_server_stops_at_once(programs: Programs, endpoint: Endpoints) -> None:
    """As the original does with --graceful-shutdown-timeout=0."""
    server, agent = programs.pair()
    tunnel = dial(server, endpoint(echo).address)
    server.terminate()
    assert server.wait() == 0
    assert ended(tunnel)
    agent.wait_for_servers(0)
    until(lambda: agent.metric("open_endpoint_connections") == 0, "the endpoint is released")


def test_both_programs_stop_on_sigint(programs: Programs) -> None:
    server, agent = programs.pair()
    for program in (agent, server):
        program.signal(signal.SIGINT)
        assert program.wait() == 0


# --- crashes under load


class Load:
    """Callers in a loop; counts answers, failures and requests that hang."""

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
                time.sleep(0.02)  # avoids a busy loop while the server is unreachable
            else:
                self.answered += 1

    def wait_for_answers(self) -> None:
        """Waits for 20 more answers."""
        wanted = self.answered + 20
        until(lambda: self.answered >= wanted, "the load is served")

    def end(self) -> None:
        self._stop.set()
        for call in self._running:
            call.result(timeout=20)
        self._pool.shutdown()


def test_no_request_hangs_when_an_agent_is_killed_under_load(
    programs: Programs, mode: str, web: HttpEndpoint
) -> None:
    """Every caller receives an error in time, and the next agent serves again."""
    server, agent = programs.pair(mode=mode)
    load = Load(server, web.address)
    load.wait_for_answers()
    agent.kill()
    until(lambda: load.failed > 0, "callers notice")
    programs.agent(server)
    load.wait_for_answers()
    load.end()
    assert load.hung == 0
    until(lambda: server.metric("established_connections") == 0, "all connections are closed")


def test_no_request_hangs_when_a_server_is_killed_under_load(
    programs: Programs, mode: str, web: HttpEndpoint
) -> None:
    """Callers receive an error in time; the agent closes its endpoints and connects to the next server."""
    server, agent = programs.pair(mode=mode)
    load = Load(server, web.address)
    load.wait_for_answers()
    server.kill()
    until(lambda: load.failed > 0, "callers notice")
    until(lambda: agent.metric("open_endpoint_connections") == 0, "the endpoints are released")
    again = programs.server(mode=mode, flags={"agent-port": server.agent_port, "uds-name": server.uds})
    load.wait_for_answers()
    load.end()
    assert load.hung == 0
    until(lambda: again.metric("established_connections") == 0, "all connections are closed")


def test_a_dial_is_retried_on_another_agent_when_its_agent_is_killed(
    programs: Programs, web: HttpEndpoint
) -> None:
    """The caller receives a normal answer."""
    server, doomed = programs.pair(agent_flags={"agent-id": "doomed"})
    doomed.pause()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(fetch, server, web.address)
        until(lambda: server.metric("pending_backend_dials") == 1, "the dial is with the doomed agent")
        programs.agent(server, flags={"agent-id": "healthy"})
        server.wait_for_agents(2)
        doomed.kill()
        assert answer.result(timeout=20) == HELLO
    assert server.metric("dial_retries_total") == 1


def test_a_pending_dial_fails_at_once_when_the_only_agent_is_killed(programs: Programs, mode: str) -> None:
    """The original fails it only after 30 s."""
    server, agent = programs.pair(mode=mode)
    agent.pause()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(dial, server, "127.0.0.1:1")
        until(lambda: server.metric("pending_backend_dials") == 1, "the dial is pending")
        agent.kill()
        with pytest.raises(RefusedDialError):
            answer.result(timeout=20)
    assert server.metric("dial_failure_count", reason="backend_close") == 1


def test_a_dial_that_no_agent_answers_ends_after_the_limit(programs: Programs, mode: str) -> None:
    """`--backend-dial-timeout`: 504 in HTTP, counted, and nothing stays pending."""
    server, agent = programs.pair(mode=mode, server_flags={"backend-dial-timeout": "500ms"})
    agent.pause()
    with pytest.raises(RefusedDialError, match="timed out waiting for backend dial") as refused:
        dial(server, "127.0.0.1:1")
    assert refused.value.status == (504 if mode == "http-connect" else 0)
    assert server.metric("pending_backend_dials") == 0
    assert server.metric("dial_failure_count", reason="backend_dial_timeout") == 1
    agent.go_on()


@pytest.mark.slow
@pytest.mark.parametrize("frozen", ["agent", "server"])
def test_a_silent_peer_is_noticed_by_keepalive(programs: Programs, frozen: str) -> None:
    """A frozen machine sends no FIN: the other side closes after a ping without an answer for 20 s."""
    server, agent = programs.pair(
        server_flags={"keepalive-time": "10s"}, agent_flags={"keepalive-time": "10s"}
    )
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
    """Whether the tunnel ended or failed, as opposed to a timeout."""
    try:
        return tunnel.recv() == b""
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        tunnel.abandon()
