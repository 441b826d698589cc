"""Bytes through the tunnel: none lost, none early, none delayed by another connection."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import socket
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

from bootbridge.bounds import BOUNDS
from bootbridge.runtime.byte_stream import USER_TIMEOUT_MS
from tests.support.audit_lines import assert_lines_add_up, audit_lines
from tests.support.process_endpoints import (
    AnswerAfterEnd,
    Endpoint,
    HalfCloser,
    NonReader,
    Sink,
    echo,
    flood,
    pattern,
    reset_after_read,
    send_first,
)
from tests.support.process_pairings import with_our_agent, with_our_server
from tests.support.process_program import Program, until
from tests.support.process_tunnels import ConnectTunnel, dial, receive, receive_all
from tests.support.tunnel_programs import OURS_ALONE, Agent, Pairing, Programs, Server

MIB = 1 << 20
GREETING = b"220 I speak first\r\n"
Endpoints = Callable[..., Endpoint]


def tables_are_empty(server: Server, agent: Agent) -> bool:
    """Whether the tables of both programs are empty."""
    s, a = server.admin.status(), agent.admin.status()
    return (
        s["connectionsTotal"] == a["connectionsTotal"] == 0
        and s["frontends"] == {"httpConnect": 0, "grpc": 0}
        and all(each["routes"] == each["queuedBytes"] == 0 for each in s["agents"])
        and all(each["routes"] == each["pendingDials"] == 0 for each in a["servers"])
    )


# --- first bytes


@with_our_server
def test_first_bytes_of_an_endpoint_never_share_a_read_with_the_200(
    programs: Programs, pairing: Pairing, endpoint: Endpoints
) -> None:
    """Kube-apiserver refuses a tunnel whose 200 comes with bytes behind it, or after them."""
    server, _ = programs.pair(pairing)
    address = endpoint(send_first).address
    for _ in range(50):
        tunnel = ConnectTunnel.dial(server, address)
        assert tunnel.head.startswith(b"HTTP/1.1 200")
        assert tunnel.extra == b""
        assert receive(tunnel, len(GREETING)) == GREETING
        tunnel.close()


def test_bytes_sent_behind_the_connect_request_are_not_lost(
    programs: Programs, pairing: Pairing, endpoint: Endpoints
) -> None:
    """A caller need not wait for the 200."""
    server, _ = programs.pair(pairing)
    tunnel = ConnectTunnel.dial(server, endpoint(echo).address, early=b"no time to wait")
    assert receive(tunnel, 15) == b"no time to wait"
    tunnel.close()


def test_first_bytes_of_a_direct_endpoint_never_share_a_read_with_the_200(
    programs: Programs, endpoint: Endpoints
) -> None:
    """Also if the endpoint closes right after its first bytes."""
    flags = {
        "proxy-strategies": "direct",
        "direct-cidrs": "127.0.0.0/8",
        "allow-destinations": "127.0.0.0/8",
    }
    server = programs.server(flags=flags)
    for serve in (send_first, lambda sock: sock.sendall(GREETING)):
        address = endpoint(serve).address
        for _ in range(30):
            tunnel = ConnectTunnel.dial(server, address)
            assert tunnel.extra == b""
            assert receive(tunnel, len(GREETING)) == GREETING
            tunnel.close()


# --- completeness


@with_our_agent
def test_an_upload_followed_by_a_close_arrives_complete(
    programs: Programs, pairing: Pairing, mode: str, endpoint: Endpoints
) -> None:
    """10 MiB, then the caller closes at once."""
    server, _ = programs.pair(pairing, mode)
    sink = Sink()
    tunnel = dial(server, endpoint(sink).address)
    body = os.urandom(10 * MIB)
    tunnel.send(body)
    tunnel.close()
    assert sink.results.get(timeout=20) == (len(body), hashlib.sha256(body).hexdigest(), "eof")


def test_a_download_followed_by_a_close_arrives_complete(
    programs: Programs, pairing: Pairing, mode: str, endpoint: Endpoints
) -> None:
    """10 MiB, then the endpoint closes at once."""
    server, _ = programs.pair(pairing, mode)
    body = os.urandom(10 * MIB)

    def serve(sock: socket.socket) -> None:
        if sock.recv(1):
            sock.sendall(body)

    tunnel = dial(server, endpoint(serve).address)
    tunnel.send(b"?")
    assert receive_all(tunnel) == body
    tunnel.close()


def test_a_caller_that_half_closes_still_receives_the_answer(programs: Programs, endpoint: Endpoints) -> None:
    """The endpoint answers only after the end of the request."""
    server, agent = programs.pair()
    body = pattern(3 * MIB)
    tunnel = ConnectTunnel.dial(server, endpoint(AnswerAfterEnd()).address)
    tunnel.send(body)
    tunnel.finish()
    assert receive_all(tunnel) == hashlib.sha256(body).hexdigest().encode()
    tunnel.close()
    until(lambda: tables_are_empty(server, agent), "tables are empty")


def test_an_endpoint_that_half_closes_still_receives_the_upload(
    programs: Programs, endpoint: Endpoints
) -> None:
    server, agent = programs.pair()
    serve = HalfCloser()
    tunnel = ConnectTunnel.dial(server, endpoint(serve).address)
    assert receive_all(tunnel) == serve.sent
    body = pattern(3 * MIB)
    tunnel.send(body)
    tunnel.close()
    assert serve.received.get(timeout=20) == body
    until(lambda: tables_are_empty(server, agent), "tables are empty")


def test_a_reset_endpoint_resets_only_its_caller(programs: Programs, endpoint: Endpoints) -> None:
    """An aborted connection ends for the caller too, at once."""
    server, agent = programs.pair()
    bystander = dial(server, endpoint(echo).address)
    victim = dial(server, endpoint(reset_after_read).address)
    victim.send(b"hello?")
    try:
        assert victim.recv() == b""
    except ConnectionError:
        pass
    bystander.send(b"still here")
    assert receive(bystander, 10) == b"still here"
    victim.close()
    bystander.close()
    until(lambda: tables_are_empty(server, agent), "tables are empty")


class Refuser:
    """Reads the beginning of a request, sends a large refusal, and closes with unread bytes."""

    answer = b"HTTP/1.1 413 Content Too Large\r\n\r\n" + pattern(20_000)

    def __call__(self, sock: socket.socket) -> None:
        sock.recv(1000)
        until(lambda: _unread(sock) > 100_000, "the upload waits at the endpoint")
        sock.sendall(self.answer)


def _unread(sock: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)


@with_our_agent
def test_an_answer_to_half_an_upload_reaches_the_caller(
    programs: Programs, pairing: Pairing, mode: str, endpoint: Endpoints
) -> None:
    """The endpoint resets the connection after its answer, which must still be delivered."""
    server, _ = programs.pair(pairing, mode)
    tunnel = dial(server, endpoint(Refuser()).address)
    with suppress(OSError):
        tunnel.send(bytes(16 * MIB))
    assert receive(tunnel, len(Refuser.answer)) == Refuser.answer
    tunnel.close()


# --- no delay by other connections


class Bystanders:
    """Connections that stay active while another connection is stalled."""

    def __init__(self, server: Server, address: str, count: int = 20) -> None:
        self._tunnels = [dial(server, address) for _ in range(count)]

    def exchange(self) -> None:
        """Sends 64 KiB on each connection and receives the echo."""
        for tunnel in self._tunnels:
            sent = os.urandom(65536)
            tunnel.send(sent)
            assert receive(tunnel, len(sent)) == sent

    def close(self) -> None:
        for tunnel in self._tunnels:
            tunnel.close()


def _transferred(server: Server) -> float:
    return server.metric("transferred_bytes_total", direction="to_frontend") + server.metric(
        "transferred_bytes_total", direction="to_agent"
    )


def wait_until_stalled(server: Server) -> None:
    """Waits until a stalled connection has filled all buffers."""
    seen = [-1.0]

    def still() -> bool:
        time.sleep(0.2)
        before, seen[0] = seen[0], _transferred(server)
        return before == seen[0]

    until(still, "the stalled connection has filled its buffers")


def test_a_stalled_reader_does_not_delay_other_connections(programs: Programs, endpoint: Endpoints) -> None:
    """Ours × ours: credit bounds the buffers of the stalled connection, without a time limit."""
    server, agent = programs.pair()
    bystanders = Bystanders(server, endpoint(echo).address)
    stalled = dial(server, endpoint(flood).address)
    stalled.send(b"!")
    wait_until_stalled(server)
    for _ in range(3):
        bystanders.exchange()
    assert receive(stalled, 8 * MIB) == bytes(8 * MIB)
    stalled.close()
    bystanders.close()
    until(lambda: tables_are_empty(server, agent), "tables are empty")


def fill(tunnel: ConnectTunnel) -> None:
    """Send until nothing is taken any more."""
    tunnel.sock.settimeout(1)
    try:
        while True:
            tunnel.send(bytes(65536))
    except TimeoutError:
        pass


def test_a_stalled_endpoint_does_not_delay_other_connections(programs: Programs, endpoint: Endpoints) -> None:
    """The same in the other direction: the caller's own socket fills up, nothing else does."""
    server, agent = programs.pair()
    bystanders = Bystanders(server, endpoint(echo).address)
    non_reader = NonReader()
    stalled = ConnectTunnel.dial(server, endpoint(non_reader).address)
    fill(stalled)
    for _ in range(3):
        bystanders.exchange()
    stalled.close()
    non_reader.released.set()
    bystanders.close()
    until(lambda: tables_are_empty(server, agent), "tables are empty")


@pytest.mark.interop
def test_a_stalled_reader_is_closed_alone_towards_the_original_agent(
    programs: Programs, endpoint: Endpoints
) -> None:
    """No credit: past its buffer and the time limit it is closed, counted and logged; others go on."""
    server, _ = programs.pair(Pairing("ours", "go"), server_flags={"stall-timeout": "2s"})
    bystanders = Bystanders(server, endpoint(echo).address)
    stalled = dial(server, endpoint(flood).address)
    stalled.send(b"!")
    until(
        lambda: server.metric("closed_connections_total", reason="stalled frontend") == 1,
        "the stalled connection is closed",
    )
    server.wait_for_log("frontend stalled")  # the log is written by a thread, after the metric
    bystanders.exchange()
    bystanders.close()
    stalled.close()


@pytest.mark.interop
def test_a_stalled_endpoint_is_closed_alone_towards_the_original_server(
    programs: Programs, endpoint: Endpoints
) -> None:
    """The agent's side of the same promise."""
    server, agent = programs.pair(Pairing("go", "ours"), agent_flags={"stall-timeout": "2s"})
    bystanders = Bystanders(server, endpoint(echo).address)
    stalled = ConnectTunnel.dial(server, endpoint(NonReader()).address)
    feeder = threading.Thread(target=_feed, args=(stalled,), daemon=True)
    feeder.start()
    until(
        lambda: agent.metric("closed_connections_total", reason="stalled endpoint") == 1,
        "the stalled connection is closed",
    )
    agent.wait_for_log("endpoint stalled")
    bystanders.exchange()
    bystanders.close()
    stalled.close()
    feeder.join(20)


@pytest.mark.interop
@pytest.mark.slow
def test_a_paused_server_does_not_take_its_own_absence_for_a_stall(
    programs: Programs, endpoint: Endpoints
) -> None:
    """SIGSTOP for longer than the time limit, while a slow caller of a Go agent has bytes waiting: it gets
    all of them afterwards."""
    server, _ = programs.pair(Pairing("ours", "go"), server_flags={"stall-timeout": "8s"})
    slow = dial(server, endpoint(flood).address)
    slow.send(b"!")
    until(
        lambda: server.admin.status()["queuedBytes"]["toFrontend"] > BOUNDS.stalled, "the caller is watched"
    )
    server.pause()
    time.sleep(10)  # the pause itself is the condition under test
    server.go_on()
    assert server.health.get("/healthz") == (200, "ok")  # it runs again, and its timers have fired
    assert receive(slow, 8 * MIB) == bytes(8 * MIB)
    assert server.metric("closed_connections_total", reason="stalled frontend") == 0
    slow.close()


def _feed(tunnel: ConnectTunnel) -> None:
    try:
        while True:
            tunnel.send(bytes(65536))
    except OSError:
        pass  # the expected close


# --- clean-up


def _has_descriptors_at_most(program: Program, count: int) -> bool:
    return program.descriptors() <= count


def test_two_hundred_connections_with_random_ends_leave_no_state(
    programs: Programs, mode: str, endpoint: Endpoints
) -> None:
    """Random sizes; some finish, some are dropped by the caller, some by the endpoint. The audit trail has
    one line for each, and the lines add up to the metrics and to what the callers transferred."""
    trail = programs.folder / "audit.jsonl"
    server, agent = programs.pair(mode=mode, server_flags={"audit-log": trail})
    address, resetting = endpoint(echo).address, endpoint(reset_after_read).address
    warm_up = dial(server, address)
    warm_up.close()
    until(lambda: tables_are_empty(server, agent), "tables are empty again")
    before = [(program.descriptors(), program.threads()) for program in (server, agent)]

    finished: list[int] = []

    def one(number: int) -> None:
        rng = random.Random(number)
        fate = rng.choice(["finish", "drop", "reset by endpoint"])
        tunnel = dial(server, resetting if fate == "reset by endpoint" else address)
        sent = rng.randbytes(rng.randrange(1, 60_000))
        try:
            tunnel.send(sent)
            if fate == "finish":
                assert receive(tunnel, len(sent)) == sent
                tunnel.close()
                finished.append(len(sent))
                return
            if fate == "reset by endpoint":
                receive_all(tunnel)
        except ConnectionError:
            assert fate == "reset by endpoint"
        tunnel.abandon()

    with ThreadPoolExecutor(200) as pool:
        list(pool.map(one, range(200)))
    until(lambda: tables_are_empty(server, agent), "tables are empty")
    for program, (descriptors, threads) in zip((server, agent), before, strict=True):
        until(partial(_has_descriptors_at_most, program, descriptors), "no socket is left")
        until(lambda program=program, threads=threads: program.threads() <= threads, "no thread is left")
    assert server.metric("queued_bytes", direction="to_frontend") == 0
    assert server.health.get("/readyz")[0] == 200
    lines = audit_lines(trail, 201)
    assert_lines_add_up(server, lines)
    transferred = Counter((line["bytesUp"], line["bytesDown"]) for line in lines)
    assert Counter((size, size) for size in finished) <= transferred


@pytest.mark.parametrize("direct", [False, True])
def test_no_state_is_left_of_a_tls_caller_whose_endpoint_closes_first(
    programs: Programs, endpoint: Endpoints, direct: bool
) -> None:
    """TLS has no half-close: the caller, the route and the endpoint are closed."""
    networks = {"direct-cidrs": "127.0.0.0/8", "allow-destinations": "127.0.0.0/8"}
    flags = {"proxy-strategies": "direct,default", **networks} if direct else {}
    server, agent = programs.pair(tcp=True, server_flags=flags)

    def answer_and_close(sock: socket.socket) -> None:
        sock.recv(10)
        sock.sendall(b"answer")

    address = endpoint(answer_and_close).address
    for _ in range(20):
        tunnel = dial(server, address)
        tunnel.send(b"question")
        assert receive_all(tunnel) == b"answer"
        tunnel.close()
    until(lambda: tables_are_empty(server, agent), "tables are empty")


@pytest.mark.slow
def test_a_tls_caller_may_read_as_slowly_as_it_likes(programs: Programs, endpoint: Endpoints) -> None:
    """Longer than TCP_USER_TIMEOUT: a caller that does not read is not a lost one."""
    server, _ = programs.pair(tcp=True)
    size = 16 * MIB

    def serve(sock: socket.socket) -> None:
        if sock.recv(1):
            sock.sendall(bytes(size))

    tunnel = dial(server, endpoint(serve).address)
    tunnel.send(b"!")
    time.sleep(USER_TIMEOUT_MS / 1000 + 5)  # the silence itself is the condition under test
    assert len(receive(tunnel, size)) == size
    tunnel.close()


@pytest.mark.slow
def test_a_thousand_connections_in_a_row_cost_no_memory(programs: Programs, endpoint: Endpoints) -> None:
    """The second thousand needs no more than the first, but for a little noise."""
    server, agent = programs.pair(OURS_ALONE)
    address = endpoint(echo).address

    def thousand() -> int:
        for _ in range(1000):
            tunnel = dial(server, address)
            tunnel.send(b"x" * 1000)
            assert receive(tunnel, 1000) == b"x" * 1000
            tunnel.close()
        until(lambda: tables_are_empty(server, agent), "tables are empty")
        return server.rss_bytes() + agent.rss_bytes()

    first = thousand()
    assert thousand() < first + 2 * MIB
