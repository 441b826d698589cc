"""Flow: credit between our own peers, the stall guard towards others, half-close, flush before close."""

from __future__ import annotations

import pytest

from bootbridge.bounds import BOUNDS
from bootbridge.metrics import Family, Gauge
from bootbridge.tunnel import extension
from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.route import CLOSING_SECONDS_MAX, FIRST_BYTES_HOLD_SECONDS, HALF_OPEN_IDLE_SECONDS_MAX
from bootbridge.tunnel.stall_guard import STALLED_SECONDS
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from tests.support.sim_script import AgentHarness, ConnectCaller, Peer, ServerHarness

CHUNK = b"x" * 65536


def _fill(agent: Peer, connect_id: int, size: int) -> None:
    for _ in range(size // len(CHUNK)):
        agent.send(p.Data(connect_id, CHUNK))


def test_credit_may_be_overdrawn_by_one_whole_message() -> None:
    assert BOUNDS.overdraft == grpc.MESSAGE_BYTES_MAX


def test_credit_is_returned_as_the_caller_takes_bytes() -> None:
    """As much as was taken, in few packets, and none while the caller does not read."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent).send(b"go")
        agent.bytes_of(1)
        caller.port.stalled = True
        _fill(agent, 1, BOUNDS.credit)
        agent.expect_nothing()
        caller.port.take(BOUNDS.credit // 8)
        agent.expect_nothing()
        caller.port.take(BOUNDS.credit // 4)
        agent.expect(p.Credit(1, BOUNDS.credit * 3 // 8))
        caller.port.take(BOUNDS.credit)
        agent.expect(p.Credit(1, BOUNDS.credit * 5 // 8))


def test_credit_is_returned_to_the_agent_of_a_grpc_caller_too() -> None:
    """A download that trickles through without ever queueing must not run dry."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.grpc_route(agent).send(p.Data(1, b"go"))
        agent.bytes_of(1)
        granted = 0
        for _ in range(4 * BOUNDS.credit // len(CHUNK)):
            agent.send(p.Data(1, CHUNK))
            granted += sum(x.size for x in agent.received if isinstance(x, p.Credit))
            agent.received.clear()
        assert len(caller.bytes_of(1)) == 4 * BOUNDS.credit
        assert granted > 3 * BOUNDS.credit


def test_a_sender_stops_when_its_credit_is_used_up() -> None:
    """The agent reads no more from an endpoint than credit and its own bound allow."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        read = 0
        while not endpoint.paused:
            harness.send_from_endpoint(endpoint, CHUNK)
            read += len(CHUNK)
        assert BOUNDS.credit <= len(server.bytes_of(1)) <= BOUNDS.credit + len(CHUNK)
        assert read <= BOUNDS.credit + BOUNDS.send_queue_high + 2 * len(CHUNK)
        server.send(p.Credit(1, BOUNDS.credit))
        assert not endpoint.paused
        assert len(server.bytes_of(1)) == read - BOUNDS.credit


def test_a_peer_that_overruns_its_credit_loses_this_one_connection() -> None:
    """Promise 4: memory is bounded, and the agent's other connections continue."""
    with ServerHarness() as harness:
        agent = harness.agent()
        victim, neighbour = harness.connect_route(agent, 1), harness.connect_route(agent, 2)
        victim.send(b"go")
        agent.bytes_of(1)
        victim.port.stalled = True
        _fill(agent, 1, BOUNDS.credit + BOUNDS.overdraft + len(CHUNK))
        assert victim.port.state == "aborted"
        agent.expect(p.Reset(1))  # its caller has not ended the upload
        agent.send(p.Data(2, b"fine"))
        neighbour.send(b"hi").expect(b"fine")
        agent.expect(p.Data(2, b"hi"))


def test_credit_for_nothing_or_less_is_ignored() -> None:
    """An invalid grant cannot change what others may send."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        server.send(p.Credit(1, 0), p.Credit(1, -5), p.Credit(99, 5))
        harness.send_from_endpoint(endpoint, b"ok")
        server.expect(p.Data(1, b"ok"))


def test_a_stalled_caller_does_not_delay_others_on_the_same_agent() -> None:
    """Promise 4: one reader stops; the second connection of the same stream is not slower."""
    with ServerHarness() as harness:
        agent = harness.agent()
        stalled, active = harness.connect_route(agent, 1), harness.connect_route(agent, 2)
        stalled.send(b"go")
        agent.bytes_of(1)
        stalled.port.stalled = True
        _fill(agent, 1, BOUNDS.credit)
        for _ in range(10):
            agent.send(p.Data(2, b"tick"))
            active.send(b"tock")
        active.expect(b"tick" * 10)
        assert agent.bytes_of(2) == b"tock" * 10


def _gauge(family: Family[Gauge], direction: str) -> float:
    return next(iter(family.labels(direction).samples()))[2]


def test_a_connection_whose_receiver_stopped_is_counted_while_it_waits() -> None:
    """The pod reads again after the server has shown the connection as stalled for a while."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent)
        stalled = harness.metrics.stalled_connections
        while not caller.port.paused:
            caller.send(CHUNK)
        harness.after(STALLED_SECONDS - 0.1)
        assert _gauge(stalled, "to_agent") == 0
        harness.after(0.2)
        assert (_gauge(stalled, "to_agent"), _gauge(stalled, "to_frontend")) == (1, 0)
        agent.send(p.Credit(1, BOUNDS.credit))
        assert _gauge(stalled, "to_agent") == 0
        agent.bytes_of(1)


def test_an_endpoint_that_waits_for_a_stopped_caller_is_counted_by_the_agent() -> None:
    """Between our own peers the sender has the queue, so it is the one that counts."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        while not endpoint.paused:
            harness.send_from_endpoint(endpoint, CHUNK)
        harness.after(STALLED_SECONDS)
        assert _gauge(harness.metrics.stalled_connections, "to_server") == 1
        server.send(p.Credit(1, BOUNDS.credit))
        assert _gauge(harness.metrics.stalled_connections, "to_server") == 0
        server.bytes_of(1)


def test_a_stopped_grpc_caller_is_counted_by_the_server() -> None:
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.grpc_route(agent).send(p.Data(1, b"go"))
        agent.bytes_of(1)
        caller.wire.stalled = True
        _fill(agent, 1, BOUNDS.credit)
        harness.after(STALLED_SECONDS)
        assert _gauge(harness.metrics.stalled_connections, "to_frontend") == 1
        caller.wire.stalled = False
        assert len(caller.bytes_of(1)) == BOUNDS.credit
        assert _gauge(harness.metrics.stalled_connections, "to_frontend") == 0
        agent.received.clear()


# --- towards a peer without credit


def _stalled_on_a_go_agent(harness: ServerHarness) -> tuple[Peer, ConnectCaller, ConnectCaller]:
    agent = harness.agent(go_like=True)
    stalled, active = harness.connect_route(agent, 1), harness.connect_route(agent, 2)
    stalled.send(b"go")
    active.send(b"go")
    agent.bytes_of(1), agent.bytes_of(2)
    stalled.port.stalled = True
    _fill(agent, 1, BOUNDS.stalled + 4 * len(CHUNK))
    harness.after(0.05)
    return agent, stalled, active


def test_a_go_agents_stalled_connection_is_closed_alone_after_the_time_limit() -> None:
    """Promise 4's fallback: this one is closed and logged with its reason; the agent stays."""
    with ServerHarness(stall_seconds=10.0) as harness:
        agent, stalled, active = _stalled_on_a_go_agent(harness)
        assert _gauge(harness.metrics.stalled_connections, "to_frontend") == 0
        harness.after(9.5)
        assert stalled.port.state == "open"
        assert _gauge(harness.metrics.stalled_connections, "to_frontend") == 1
        harness.after(1.0)
        assert stalled.port.state == "aborted"
        assert active.port.state == "open"
        agent.expect(p.CloseRequest(1))
        (note,) = harness.event_log.about("connection closed: frontend stalled")
        assert note["connection"] == 1
        assert harness.metrics.closed_connections_total.labels("stalled frontend").value == 1
        assert _gauge(harness.metrics.stalled_connections, "to_frontend") == 0


def test_other_connections_continue_before_a_stalled_one_is_closed() -> None:
    """A Go agent has no credit; small messages of other connections still arrive."""
    with ServerHarness(stall_seconds=10.0) as harness:
        agent, stalled, active = _stalled_on_a_go_agent(harness)
        for _ in range(20):
            agent.send(p.Data(2, b"tick"))
            harness.after(0.05)
        active.expect(b"tick" * 20)
        assert stalled.port.state == "open"


def test_a_slow_but_moving_caller_of_a_go_agent_is_throttled_not_closed() -> None:
    """While it reads anything, it stays open, and its sender is throttled to its speed."""
    with ServerHarness(stall_seconds=10.0) as harness:
        agent, slow, _ = _stalled_on_a_go_agent(harness)
        for _ in range(30):
            slow.port.take(20_000)
            harness.after(1.0)
        assert slow.port.state == "open"
        slow.port.stalled = False
        harness.after(1.0)
        assert len(slow.port.written) == BOUNDS.stalled + 4 * len(CHUNK)
        assert harness.stream_of(agent).guard is not None
        assert len(harness.stream_of(agent).guard) == 0  # type: ignore[arg-type]
        assert not harness.stream_of(agent).stream.paused


def test_a_stalled_endpoint_of_a_go_server_is_closed_alone() -> None:
    """The same guard on the agent: the endpoint is reset, and CLOSE_RSP has the reason."""
    with AgentHarness(stall_seconds=10.0) as harness:
        server = harness.server(go_like=True)
        stalled = harness.endpoint(server, 5, 1)
        active = harness.endpoint(server, 6, 2)
        stalled.stalled = True
        _fill(server, 1, BOUNDS.stalled + 4 * len(CHUNK))
        harness.after(11.0)
        (closed,) = server.received
        server.received.clear()
        assert isinstance(closed, p.CloseResponse)
        assert closed.connect_id == 1
        assert "stalled" in closed.error
        assert (stalled.state, active.state) == ("aborted", "open")
        server.send(p.Data(2, b"fine"))
        assert active.written == b"fine"


def test_a_pause_of_our_own_is_not_the_stall_of_a_caller() -> None:
    """While we were stopped, the caller could not make progress: it has the rest of its time after that."""
    with ServerHarness(stall_seconds=10.0) as harness:
        agent, stalled, active = _stalled_on_a_go_agent(harness)
        harness.after(5.0)
        harness.pause(3600.0)
        harness.after(4.5)
        assert stalled.port.state == "open"
        harness.after(1.0)
        assert stalled.port.state == "aborted"
        agent.expect(p.CloseRequest(1))
        assert active.port.state == "open"


def test_a_pause_of_our_own_is_not_the_stall_of_an_endpoint() -> None:
    with AgentHarness(stall_seconds=10.0) as harness:
        server = harness.server(go_like=True)
        stalled = harness.endpoint(server, 5, 1)
        stalled.stalled = True
        _fill(server, 1, BOUNDS.stalled + 4 * len(CHUNK))
        harness.after(5.0)
        harness.pause(3600.0)
        harness.after(4.5)
        assert stalled.state == "open"
        stalled.stalled = False
        harness.after(10.0)
        assert stalled.state == "open"
        assert len(stalled.written) == BOUNDS.stalled + 4 * len(CHUNK)


# --- half-close


def test_a_callers_half_close_reaches_the_endpoint_and_the_answer_comes_back() -> None:
    """END, not CLOSE: the endpoint receives the end of the upload and still answers."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent).send(b"question").end()
        agent.expect(p.Data(1, b"question"), p.End(1)).send(p.Data(1, b"answer"), p.CloseResponse("", 1))
        caller.expect(b"answer")
        assert caller.port.state == "closed"
        assert harness.core.idle


def test_an_endpoints_half_close_reaches_the_caller_which_may_still_send() -> None:
    """END from the agent: the caller's socket is half-closed, its upload goes on."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent)
        agent.send(p.Data(1, b"all I have"), p.End(1))
        harness.after(FIRST_BYTES_HOLD_SECONDS)
        caller.expect(b"all I have")
        assert caller.port.state == "finished"
        caller.send(b"more").end()
        agent.expect(p.Data(1, b"more"), p.End(1)).send(p.CloseResponse("", 1))
        assert caller.port.state == "closed"


@pytest.mark.parametrize("held", [False, True])
def test_a_complete_download_is_not_reset_when_the_upload_comes_too_late(held: bool) -> None:
    """The endpoint has ended in order and closed; the error is about the rest of the upload. Also while the
    first bytes are held."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent)
        packets = [p.Data(1, b"all I have"), p.End(1), p.CloseResponse("broken pipe", 1)]
        if not held:
            caller.send(b"question")
            agent.expect(p.Data(1, b"question"))
        agent.send(*packets)
        harness.after(FIRST_BYTES_HOLD_SECONDS)
        caller.expect(b"all I have")
        assert caller.port.state == "closed"
        assert harness.core.idle


@pytest.mark.parametrize("repeated", [p.End(1), p.CloseResponse("", 1)])
def test_an_agent_that_sends_more_after_it_closed_closes_its_own_connection_only(repeated: p.Packet) -> None:
    """While the first bytes are held; what it repeats is not kept."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent)
        agent.send(p.Data(1, b"x"), p.CloseResponse("", 1), *[repeated] * 1000)
        harness.after(FIRST_BYTES_HOLD_SECONDS)
        caller.expect(b"x")
        assert caller.port.state == "closed"
        assert len(harness.core.agent_registry) == 1
        assert harness.core.idle


def test_a_complete_direct_download_is_not_reset_when_the_upload_comes_too_late() -> None:
    with ServerHarness(strategies=[Strategy.DIRECT]) as harness:
        caller = harness.connect_caller().connect("192.0.2.1:80")
        endpoint = harness.dials.requested.pop().succeed()
        caller.expect_status(200).send(b"question")
        endpoint.handler.on_bytes(memoryview(b"all I have"))
        endpoint.handler.on_eof(False)
        endpoint.handler.on_lost("broken pipe")
        caller.expect(b"all I have")
        assert caller.port.state == "closed"
        assert harness.core.idle


def test_a_direct_connection_ends_with_an_endpoint_that_neither_sends_nor_reads() -> None:
    """No write would find that out for a caller that only reads."""
    with ServerHarness(strategies=[Strategy.DIRECT]) as harness:
        caller = harness.connect_caller().connect("192.0.2.1:80")
        endpoint = harness.dials.requested.pop().succeed()
        caller.expect_status(200).send(b"question")
        endpoint.handler.on_bytes(memoryview(b"all I have"))
        endpoint.handler.on_eof(True)
        caller.expect(b"all I have")
        assert caller.port.state == endpoint.state == "closed"
        assert harness.core.idle


@pytest.mark.parametrize("direct", [False, True])
def test_a_caller_without_half_close_is_closed_when_the_endpoint_ends(direct: bool) -> None:
    """Promise 7: a frontend with TLS, which has no half-close, leaves no state."""
    with ServerHarness(strategies=[Strategy.DIRECT if direct else Strategy.DEFAULT]) as harness:
        agent = harness.agent()
        caller = harness.connect_caller()
        caller.port.half_closes = False
        caller.connect("192.0.2.1:80")
        if direct:
            endpoint = harness.dials.requested.pop().succeed()
            caller.expect_status(200)
            endpoint.handler.on_eof(False)
            assert endpoint.state == "closed"
        else:
            harness.accept(agent, 1)
            caller.expect_status(200)
            agent.send(p.End(1)).expect(p.CloseRequest(1)).send(p.CloseResponse("", 1))
        assert caller.port.state == "closed"
        assert harness.core.idle
        assert not harness.core.connect_frontends


@pytest.mark.parametrize("front_ends", [False, True])
def test_a_direct_connection_that_is_half_closed_and_silent_ends(front_ends: bool) -> None:
    """After five minutes without a byte, whichever side has ended."""
    with ServerHarness(strategies=[Strategy.DIRECT]) as harness:
        caller = harness.connect_caller().connect("192.0.2.1:80")
        endpoint = harness.dials.requested.pop().succeed()
        caller.expect_status(200)
        if front_ends:
            caller.end()
        else:
            endpoint.handler.on_eof(False)
        harness.after(HALF_OPEN_IDLE_SECONDS_MAX * 0.9)
        assert not harness.core.idle
        harness.after(HALF_OPEN_IDLE_SECONDS_MAX)
        assert caller.port.state == "aborted"
        assert endpoint.state == ("closed" if front_ends else "aborted")  # an unfinished upload is reset
        assert harness.core.idle


def test_the_agent_passes_half_close_on_in_both_directions() -> None:
    """END finishes the socket's writing side; its EOF becomes END, and two ends make a close."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        server.send(p.Data(1, b"question"), p.End(1))
        assert (endpoint.written, endpoint.state) == (b"question", "finished")
        harness.send_from_endpoint(endpoint, b"answer")
        endpoint.handler.on_eof(False)
        server.expect(p.Data(1, b"answer"), p.CloseResponse("", 1))
        other = harness.endpoint(server, 6, 2)
        other.handler.on_eof(False)
        server.expect(p.End(2)).send(p.Data(2, b"late"), p.End(2)).expect(p.CloseResponse("", 2))
        assert (other.written, other.state) == (b"late", "closed")


def test_a_half_close_becomes_a_close_for_a_go_agent() -> None:
    """Konnectivity has no half-close. The upload is flushed before CLOSE_REQ."""
    with ServerHarness() as harness:
        agent = harness.agent(go_like=True)
        caller = harness.connect_route(agent).send(b"question").end()
        agent.expect(p.Data(1, b"question"), p.CloseRequest(1))
        assert caller.port.state == "closed"


def test_a_half_closed_connection_with_an_active_upload_is_not_idle() -> None:
    """It is closed only after the upload has stopped for the idle limit."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent)
        agent.send(p.End(1))
        for _ in range(4):
            harness.after(HALF_OPEN_IDLE_SECONDS_MAX * 0.9)
            caller.send(b"more")
            agent.expect(p.Data(1, b"more"))
        assert caller.port.state == "finished"
        waited = 0
        while caller.port.state == "finished" and waited < 3 * HALF_OPEN_IDLE_SECONDS_MAX:
            harness.after(10)
            waited += 10
        assert caller.port.state == "aborted"
        agent.expect(p.Reset(1)).send(p.CloseResponse("", 1))  # the caller has not ended its upload
        assert harness.core.idle


def test_a_half_closed_idle_connection_is_closed_in_order_if_its_upload_has_ended() -> None:
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent).send(b"all").end()
        agent.expect(p.Data(1, b"all"), p.End(1))
        harness.after(HALF_OPEN_IDLE_SECONDS_MAX + 1)
        assert caller.port.state == "aborted"
        agent.expect(p.CloseRequest(1)).send(p.CloseResponse("", 1))


# --- flush before close


def test_a_callers_upload_is_flushed_before_the_close() -> None:
    """Accepted bytes wait for credit, and CLOSE_REQ waits behind them."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent)
        size = 0
        while not caller.port.paused:
            caller.send(CHUNK)
            size += len(CHUNK)
        caller.end(gone=True)
        got = len(agent.bytes_of(1))
        agent.expect_nothing()
        agent.send(p.Credit(1, BOUNDS.credit))
        assert got + len(agent.bytes_of(1)) == size
        agent.expect(p.CloseRequest(1)).send(p.CloseResponse("", 1))
        assert harness.core.idle


def _closing_with_unsent_upload(harness: ServerHarness, agent: Peer) -> int:
    """A caller has left, and its upload waits for credit or window; returns the size of the upload."""
    caller = harness.connect_route(agent)
    size = 0
    while not caller.port.paused:
        caller.send(CHUNK)
        size += len(CHUNK)
    caller.end(gone=True)
    return size


def test_an_unread_upload_is_dropped_after_a_time_limit_and_its_endpoint_reset() -> None:
    """Promises 1 and 7: a closed connection leaves the tables, and a truncation is not an orderly end."""
    with ServerHarness() as harness:
        agent = harness.agent()
        _closing_with_unsent_upload(harness, agent)
        agent.bytes_of(1)
        harness.after(CLOSING_SECONDS_MAX + 1)
        agent.expect(p.Reset(1))
        assert harness.core.idle


def test_a_peer_that_does_not_know_reset_gets_a_close() -> None:
    """As every Go agent: Konnectivity's protocol has no reset."""
    with ServerHarness() as harness:
        offer = f"credit={BOUNDS.credit},half-close"
        agent = harness.agent_call([("agentid", "a"), (extension.KEY, offer)])
        _closing_with_unsent_upload(harness, agent)
        agent.bytes_of(1)
        harness.after(CLOSING_SECONDS_MAX + 1)
        agent.expect(p.CloseRequest(1))
        assert harness.core.idle


def test_the_upload_of_a_slow_endpoint_is_not_dropped_while_it_moves() -> None:
    with ServerHarness() as harness:
        agent = harness.agent()
        size = _closing_with_unsent_upload(harness, agent)
        got = len(agent.bytes_of(1))
        while got < size:
            harness.after(CLOSING_SECONDS_MAX * 0.9)
            agent.send(p.Credit(1, len(CHUNK)))
            got += len(agent.bytes_of(1))
        agent.expect(p.CloseRequest(1)).send(p.CloseResponse("", 1))
        assert got == size
        assert harness.core.idle


def test_an_agent_resets_the_endpoint_of_an_incomplete_upload() -> None:
    """RESET: the endpoint sees a reset, not an end; the server gets the same answer as to CLOSE_REQ."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        server.send(p.Data(1, b"half of it"), p.Reset(1)).expect(p.CloseResponse("", 1))
        assert (endpoint.written, endpoint.state) == (b"half of it", "aborted")
        server.send(p.Reset(1)).expect(p.CloseResponse("Unknown connectID", 1))


def test_a_reset_without_the_extension_is_ignored() -> None:
    with AgentHarness() as harness:
        server = harness.server(go_like=True)
        endpoint = harness.endpoint(server)
        server.send(p.Reset(1)).expect_nothing()
        assert endpoint.state == "open"


def test_no_credit_is_given_for_a_connection_that_was_closed() -> None:
    """Promise 5: no packet follows a close, not even CREDIT for bytes that a slow gRPC caller still reads."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.grpc_route(agent).send(p.Data(1, b"go"))
        agent.bytes_of(1)
        caller.wire.stalled = True
        _fill(agent, 1, BOUNDS.credit)
        agent.received.clear()
        caller.send(p.CloseRequest(1))
        agent.expect(p.CloseRequest(1))
        caller.wire.stalled = False
        harness.settle()
        caller.bytes_of(1)
        caller.expect(p.CloseResponse("", 1))
        agent.expect_nothing()


def test_an_agent_that_provokes_answers_without_reading_them_loses_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is bounded for control packets too, not for payload only."""
    monkeypatch.setattr(BOUNDS, "control_packets", 2000)
    with ServerHarness() as harness:
        adversary, honest = harness.agent("adversary"), harness.agent("honest")
        stream = harness.stream_of(adversary)
        adversary.stream.pause_reading()  # its window is never opened again
        waiting_max = 0
        while not stream.ended and waiting_max <= 5000:
            adversary.send(*[p.Data(1000 + number, b"?") for number in range(1000)])
            waiting_max = max(waiting_max, len(stream._urgent))
            harness.after(0.001)
        assert stream.ended
        assert waiting_max <= 2000 + 1000
        assert len(stream._urgent) == 0
        assert [agent.agent_id for agent in harness.core.agent_registry] == ["honest"]
        harness.connect_route(honest)
        adversary.received.clear()


def test_packets_to_a_go_agent_are_no_larger_than_those_of_the_go_server() -> None:
    """It queues 150 packets of a connection whose endpoint does not read: their size decides its memory."""
    with ServerHarness() as harness:
        agent = harness.agent(go_like=True)
        caller = harness.connect_route(agent)
        sent = bytes(range(256)) * 1000  # one read of a socket
        caller.send(sent)
        agent.harness.settle()
        sizes = [len(packet.data) for packet in agent.received if isinstance(packet, p.Data)]
        assert max(sizes) == BOUNDS.go_agent_packet
        assert len(sizes) == -(-len(sent) // BOUNDS.go_agent_packet)
        assert agent.bytes_of(1) == sent


def test_packets_of_a_grpc_caller_to_a_go_agent_are_cut() -> None:
    """The Go server forwards them in any size, up to 4 MiB each."""
    with ServerHarness() as harness:
        agent = harness.agent(go_like=True)
        caller = harness.grpc_route(agent)
        sent = bytes(range(256)) * 1000
        caller.send(p.Data(1, sent))
        sizes = [len(packet.data) for packet in agent.received if isinstance(packet, p.Data)]
        assert max(sizes) == BOUNDS.go_agent_grpc_packet
        assert agent.bytes_of(1) == sent


def test_packets_to_a_go_agent_that_waited_are_cut_too() -> None:
    """Also those that were queued while its stream was full, and connections then take turns."""
    with ServerHarness() as harness:
        agent = harness.agent(go_like=True)
        one, two = harness.connect_route(agent, 1), harness.connect_route(agent, 2)
        agent.wire.stalled = True
        sent = bytes(range(256)) * 1000
        uploaded = b""
        while not one.port.paused:
            one.send(sent)
            uploaded += sent
        two.send(b"y" * 100_000)
        agent.wire.stalled = False
        harness.settle()
        sizes = [len(packet.data) for packet in agent.received if isinstance(packet, p.Data)]
        assert max(sizes) <= BOUNDS.go_agent_packet
        assert agent.bytes_of(1) == uploaded
        assert agent.bytes_of(2) == b"y" * 100_000


def test_packets_between_our_own_peers_are_not_cut() -> None:
    """Credit bounds them."""
    with ServerHarness() as harness:
        agent = harness.agent()
        harness.connect_route(agent).send(bytes(256 * 1024))
        assert [len(packet.data) for packet in agent.received if isinstance(packet, p.Data)] == [256 * 1024]
        agent.received.clear()
