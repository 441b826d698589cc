"""Dials: each is answered within its deadline, also if its agent or frontend is lost."""

from __future__ import annotations

import pytest

from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.route import FIRST_BYTES_HOLD_SECONDS
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from tests.support.sim_script import OK, Peer, ServerHarness


def _dial_id(agent: Peer) -> int:
    return agent.expect_one(p.DialRequest).random


def test_an_unanswered_dial_times_out_with_504() -> None:
    """504, no pending dial left, and DIAL_CLS to the agent."""
    with ServerHarness(dial_seconds=0.5) as harness:
        agent = harness.agent()
        caller = harness.connect_caller().connect()
        dial = _dial_id(agent)
        harness.after(0.4)
        assert harness.core.dial_count == 1
        harness.after(0.2)
        caller.expect_status(504)
        agent.expect(p.CloseDial(dial))
        assert harness.core.dial_count == 0
        assert harness.failures("backend_dial_timeout") == 1


def test_a_dial_to_an_agent_that_does_not_read_times_out_too() -> None:
    """Also if the DIAL_REQ could not be sent."""
    with ServerHarness(dial_seconds=0.5) as harness:
        agent = harness.agent()
        busy = harness.connect_route(agent, 1)
        agent.wire.stalled = True
        while harness.stream_of(agent).idle:
            busy.send(b"x" * 65536)
        caller = harness.connect_caller().connect("10.0.0.2:80")
        harness.after(0.6)
        caller.expect_status(504)
        assert harness.core.dial_count == 0
        agent.wire.stalled = False
        agent.bytes_of(1)
        request, cancellation = agent.received
        agent.received.clear()
        assert isinstance(request, p.DialRequest)
        assert cancellation == p.CloseDial(request.random)


def test_an_agent_that_left_a_dial_unanswered_is_a_last_resort() -> None:
    """Other agents are preferred until it answers again."""
    with ServerHarness(dial_seconds=0.5) as harness:
        stuck = harness.agent("stuck")
        harness.connect_caller().connect()
        dial = _dial_id(stuck)
        harness.after(0.6)
        stuck.expect(p.CloseDial(dial))
        harness.connect_caller().connect()
        again = _dial_id(stuck)  # the only agent so far
        neighbour = harness.agent("neighbour")
        for connect_id in range(1, 9):
            harness.connect_route(neighbour, connect_id)
        assert harness.stream_of(stuck).silent
        stuck.send(p.DialResponse("", 1, again))
        assert not harness.stream_of(stuck).silent
        harness.connect_caller().connect()
        _dial_id(stuck)  # it has the fewest connections


def test_an_unanswered_dial_sends_a_ping_to_the_agent() -> None:
    """A lost agent is detected by a ping, not after the keepalive interval of an hour."""
    with ServerHarness(dial_seconds=0.5) as harness:
        agent = harness.agent()
        pings: list[str] = []
        agent.wire.core.on_suspected = lambda: pings.append("ping")
        harness.connect_caller().connect()
        dial = _dial_id(agent)
        harness.after(0.6)
        agent.expect(p.CloseDial(dial))
        assert pings == ["ping"]


def test_the_error_text_of_an_agent_reaches_the_caller_unchanged() -> None:
    """A refused endpoint is 502 with the agent's text, counted as error_response."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_caller().connect()
        agent.send(p.DialResponse("dial tcp: connection refused", 0, _dial_id(agent)))
        assert b"connection refused" in caller.port.written
        caller.expect_status(502)
        assert harness.failures("error_response") == 1


def test_a_connection_whose_dial_was_cancelled_is_closed() -> None:
    with ServerHarness(dial_seconds=0.5) as harness:
        agent = harness.agent()
        caller = harness.connect_caller().connect()
        dial = _dial_id(agent)
        harness.after(0.6)
        caller.expect_status(504)
        agent.expect(p.CloseDial(dial)).send(p.DialResponse("", 7, dial)).expect(p.CloseRequest(7))
        assert harness.failures("unrecognized_response") == 1
        assert harness.core.route_count == 0


def test_a_dial_fails_at_once_when_its_only_agent_is_lost() -> None:
    """Promise 3: not after the timeout, but the moment the agent is lost."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_caller().connect()
        _dial_id(agent)
        agent.disconnect()
        caller.expect_status(502)
        assert harness.core.dial_count == 0
        assert harness.failures("backend_close") == 1


def test_a_dial_is_retried_once_on_another_agent_when_its_agent_is_lost() -> None:
    """No bytes were sent yet, so the retry is safe and the caller sees a normal answer."""
    with ServerHarness() as harness:
        first, second = harness.agent("a"), harness.agent("b")
        caller = harness.connect_caller().connect()
        dialled, other = (first, second) if first.received else (second, first)
        _dial_id(dialled)
        dialled.disconnect()
        harness.accept(other, 1)
        caller.expect(OK)
        assert harness.metrics.dial_retries_total.value == 1


def test_a_dial_is_retried_only_once() -> None:
    """Promise 6: after the loss of two agents, a third one is not dialled."""
    with ServerHarness() as harness:
        agents = [harness.agent(name) for name in "abc"]
        caller = harness.connect_caller().connect()
        for _ in range(2):
            dialled = next(agent for agent in agents if agent.received)
            _dial_id(dialled)
            dialled.disconnect()
        caller.expect_status(502)


def test_a_retried_dial_keeps_its_first_deadline() -> None:
    """Promise 3: the loss of an agent does not extend the time that the caller waits."""
    with ServerHarness(dial_seconds=1.0) as harness:
        first, second = harness.agent("a"), harness.agent("b")
        caller = harness.connect_caller().connect()
        dialled, other = (first, second) if first.received else (second, first)
        _dial_id(dialled)
        harness.after(0.8)
        dialled.disconnect()
        dial = _dial_id(other)
        harness.after(0.3)
        caller.expect_status(504)
        other.expect(p.CloseDial(dial))


def test_an_established_connection_is_never_retried() -> None:
    """Promise 6: bytes may have been sent, so the loss of its agent closes it."""
    with ServerHarness() as harness:
        agent, _ = harness.agent("a"), harness.agent("b")
        other = harness.peers[1]
        caller = harness.connect_caller().connect()
        dialled = agent if agent.received else other
        harness.accept(dialled, 1)
        caller.expect(OK)
        dialled.disconnect()
        assert caller.port.state == "aborted"
        assert harness.core.dial_count == 0


def test_a_caller_that_disconnects_cancels_its_pending_dial() -> None:
    """The agent receives DIAL_CLS."""
    with ServerHarness() as harness:
        agent = harness.agent()
        harness.connect_caller().connect().end(gone=True)
        request, cancellation = agent.received
        agent.received.clear()
        assert isinstance(request, p.DialRequest)
        assert cancellation == p.CloseDial(request.random)


def test_a_caller_can_cancel_its_dial_with_dial_cls() -> None:
    """It is passed on with the dial id of the server, never with that of the caller."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.grpc_caller().send(p.DialRequest("tcp", "10.0.0.1:80", 424242))
        dial = _dial_id(agent)
        caller.send(p.CloseDial(1)).expect_nothing()
        agent.expect_nothing()
        caller.send(p.CloseDial(424242))
        agent.expect(p.CloseDial(dial))


def test_dial_cls_that_crosses_the_answer_closes_the_connection() -> None:
    """It must not stay open: no frontend uses it."""
    with ServerHarness() as harness:
        agent = harness.agent()
        harness.grpc_route(agent).send(p.CloseDial(9))
        agent.expect(p.CloseRequest(1))


def test_a_draining_agent_gets_dials_only_if_no_other_can_take_them() -> None:
    """Promise 6: other agents are preferred, but a sole draining agent still serves."""
    with ServerHarness() as harness:
        leaving = harness.agent("a").send(p.Drain())
        staying = harness.agent("b")
        for number in range(1, 9):
            harness.connect_route(staying, number)
        staying.disconnect()
        harness.connect_route(leaving, 1)


def test_two_streams_of_one_agent_id_do_not_mix_their_connections() -> None:
    """Connect ids belong to a stream, so the same id on both is two connections."""
    with ServerHarness() as harness:
        old = harness.agent("same")
        first = harness.connect_route(old, 1)
        new = harness.agent("same")
        old.send(p.Drain())
        second = harness.connect_route(new, 1)
        first.send(b"to old")
        second.send(b"to new")
        old.expect(p.Data(1, b"to old")).send(p.Data(1, b"from old"))
        new.expect(p.Data(1, b"to new")).send(p.Data(1, b"from new"))
        first.expect(b"from old")
        second.expect(b"from new")


def test_the_loss_of_an_old_stream_does_not_affect_a_new_one_of_the_same_agent() -> None:
    """Only routes and dials of the lost stream end with it."""
    with ServerHarness() as harness:
        old = harness.agent("same")
        first = harness.connect_route(old, 1)
        old.send(p.Drain())
        new = harness.agent("same")
        second = harness.connect_route(new, 1)
        old.disconnect()
        assert first.port.state == "aborted"
        assert second.port.state == "open"
        assert len(harness.core.agent_registry) == 1
        second.send(b"still here")
        new.expect(p.Data(1, b"still here"))


def test_the_loss_of_one_agent_does_not_affect_the_tables_of_others() -> None:
    with ServerHarness() as harness:
        one = harness.agent("a")
        lost_route = harness.connect_route(one, 1)
        two = harness.agent("b")
        one.send(p.Drain())
        kept_route = harness.connect_route(two, 1)
        pending = harness.connect_caller().connect("10.0.0.3:80")
        dial = _dial_id(two)
        one.disconnect()
        assert (lost_route.port.state, kept_route.port.state) == ("aborted", "open")
        assert (harness.core.route_count, harness.core.dial_count) == (1, 1)
        two.send(p.DialResponse("", 2, dial))
        pending.expect(OK)


def test_gauges_and_durations_are_updated_when_an_agent_is_lost() -> None:
    """The gauges for established and pending decrease, and each lifetime is observed."""
    with ServerHarness() as harness:
        agent = harness.agent()
        for number in (1, 2, 3):
            harness.connect_route(agent, number)
        harness.connect_caller().connect()
        _dial_id(agent)
        harness.now += 5.0
        assert _shown(harness) == (3, 1)
        agent.disconnect()
        assert _shown(harness) == (0, 0)
        assert harness.metrics.connection_duration_seconds.count == 3
        assert harness.metrics.connection_duration_seconds.sum == 15.0


def _shown(harness: ServerHarness) -> tuple[float, float]:
    gauges = harness.metrics.established_connections, harness.metrics.pending_backend_dials
    established, pending = (next(iter(gauge.samples()))[2] for gauge in gauges)
    return established, pending


def test_ready_backend_connections_counts_streams_with_any_strategy() -> None:
    """Here with three strategies."""
    with ServerHarness(strategies=[Strategy.DEST_HOST, Strategy.DEFAULT_ROUTE, Strategy.DEFAULT]) as harness:
        harness.agent("a", identifiers="host=node-1")
        harness.agent("b")
        assert next(iter(harness.metrics.ready_backend_connections.samples()))[2] == 2


def test_an_agent_that_reuses_a_connect_id_breaks_the_old_connection_not_the_new() -> None:
    """Otherwise two frontends would share one connection."""
    with ServerHarness() as harness:
        agent = harness.agent()
        old = harness.connect_route(agent, 1)
        new = harness.connect_route(agent, 1)
        assert (old.port.state, new.port.state) == ("aborted", "open")
        agent.send(p.Data(1, b"for the new one"))
        new.send(b"hi").expect(b"for the new one")
        agent.expect(p.Data(1, b"hi"))
        old.expect(b"")


def test_an_agent_cannot_send_packets_for_dials_and_routes_of_another() -> None:
    """Promise 2: ids are looked up in the tables of the stream on which they arrived."""
    with ServerHarness() as harness:
        honest = harness.agent("a")
        caller = harness.connect_route(honest, 1)
        pending = harness.connect_caller().connect("10.0.0.2:80")
        dial = _dial_id(honest)
        adversary = harness.agent("b")
        adversary.send(p.Data(1, b"lies"), p.CloseResponse("", 1), p.DialResponse("", 5, dial), p.End(1))
        adversary.send(p.Credit(1, 1 << 40), p.CloseDial(dial))
        adversary.expect(p.CloseRequest(1), p.CloseRequest(5))
        caller.expect(b"")
        pending.expect(b"")
        assert (harness.core.route_count, harness.core.dial_count) == (1, 1)


def test_direct_dials_are_made_by_the_server_itself() -> None:
    """The direct strategy: bytes both ways without any agent, and both ends close in order."""
    with ServerHarness(strategies=[Strategy.DIRECT, Strategy.DEFAULT]) as harness:
        caller = harness.connect_caller().connect("192.0.2.7:80")
        endpoint = harness.dials.requested.pop().succeed()
        caller.expect(OK).send(b"question")
        assert endpoint.written == b"question"
        endpoint.handler.on_bytes(memoryview(b"answer"))
        caller.expect(b"answer").end()
        assert endpoint.state == "finished"
        endpoint.handler.on_eof(False)
        assert (caller.port.state, endpoint.state) == ("closed", "closed")
        assert harness.core.idle


def test_a_grpc_caller_gets_one_close_response_for_a_direct_endpoint() -> None:
    """Promise 5: one CLOSE_RSP behind the data, and nothing after it."""
    with ServerHarness(strategies=[Strategy.DIRECT]) as harness:
        caller = harness.grpc_caller().send(p.DialRequest("tcp", "192.0.2.7:80", 9))
        endpoint = harness.dials.requested.pop().succeed()
        endpoint.handler.on_bytes(memoryview(b"all"))
        endpoint.handler.on_eof(False)
        harness.after(FIRST_BYTES_HOLD_SECONDS)
        caller.expect(p.DialResponse("", 1, 9), p.Data(1, b"all"), p.CloseResponse("", 1))
        assert endpoint.state == "closed"


# --- addresses that are too long


def test_an_address_longer_than_any_name_is_refused_at_once() -> None:
    """Promise 4: the queue for an agent is bounded in packets, so a packet must be small."""
    with ServerHarness() as harness:
        agent = harness.agent()
        endless = "a" * 100_000 + ":80"
        caller = harness.grpc_caller().send(p.DialRequest("tcp", endless, 7))
        answer = caller.expect_one(p.DialResponse)
        assert (answer.random, answer.connect_id) == (7, 0)
        assert len(answer.error) < 100
        harness.grpc_caller().send(p.DialRequest(endless, "10.0.0.1:80", 8)).expect_one(p.DialResponse)
        harness.connect_caller().connect("a" * 1000 + ":80").expect_status(502)
        agent.expect_nothing()
        assert harness.failures("error_response") == 3
        assert harness.core.dial_count == 0


def test_the_longest_valid_name_can_be_dialled() -> None:
    """255 characters of a name, and its port."""
    with ServerHarness() as harness:
        agent = harness.agent()
        name = ".".join(["a" * 63] * 4)[:255]
        harness.connect_caller().connect(f"{name}:65535")
        dial = agent.expect_one(p.DialRequest)
        assert dial.address == f"{name}:65535"
        agent.send(p.DialResponse("no such host", 0, dial.random))


# --- metadata of agents


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ([], "expected one agent ID in the context, got []"),
        ([("agentid", "a"), ("agentid", "b")], "expected one agent ID in the context, got [a b]"),
        (
            [("agentid", "a"), ("agentidentifiers", "ipv4=10.0.0.1"), ("agentidentifiers", "host=b")],
            "expected at most one set of agent identifiers in the context, got [ipv4=10.0.0.1 host=b]",
        ),
        ([("agentid", "a"), ("agentidentifiers", "ipv4=%zz")], "invalid URL escape"),
    ],
    ids=["no id", "two ids", "two sets of identifiers", "invalid identifiers"],
)
def test_invalid_agent_metadata_is_refused_with_the_reason(
    metadata: list[tuple[str, str]], error: str
) -> None:
    with ServerHarness() as harness:
        caller = harness.agent_call(metadata)
        assert caller.status == grpc.UNKNOWN
        assert error in grpc.status_of(caller.headers[-1][0])[1]
        assert not harness.core.agent_registry


@pytest.mark.parametrize("identifiers", ["", "ipv4=10.0.0.1&host=node1"])
def test_agent_identifiers_are_optional(identifiers: str) -> None:
    with ServerHarness() as harness:
        harness.agent("a", identifiers=identifiers)
        assert [agent.agent_id for agent in harness.core.agent_registry] == ["a"]


def test_an_invalid_cidr_is_logged() -> None:
    """The agent stays connected, but this network matches no destination."""
    with ServerHarness() as harness:
        harness.agent("a", identifiers="cidr=10.0.0.0/99&cidr=10.0.0.0/8")
        assert harness.event_log.about("agent advertises an invalid CIDR") == [
            {"agent": "a", "cidr": "10.0.0.0/99"}
        ]


# --- right after the start ------------------------------------------------------------------


def test_a_dial_right_after_the_start_waits_for_the_first_agent() -> None:
    """Agents need a moment to find a server that was just started."""
    with ServerHarness(first_agent_seconds=5.0) as harness:
        connect, grpc_caller = harness.connect_caller().connect(), harness.grpc_caller()
        grpc_caller.send(p.DialRequest("tcp", "10.0.0.1:80", 9))
        harness.after(4.0)
        assert harness.core.dial_count == 2
        agent = harness.agent()
        first, second = [packet.random for packet in agent.received if isinstance(packet, p.DialRequest)]
        agent.received.clear()
        agent.send(p.DialResponse("", 1, first), p.DialResponse("", 2, second))
        connect.expect_status(200)
        grpc_caller.expect(p.DialResponse("", 2, 9))


def test_a_dial_waits_no_longer_than_the_start_lasts() -> None:
    """Then it is refused as without the wait, and later ones at once."""
    with ServerHarness(first_agent_seconds=5.0) as harness:
        early = harness.connect_caller().connect()
        harness.after(4.9)
        assert harness.core.dial_count == 1
        harness.after(0.2)
        early.expect_status(500)
        harness.connect_caller().connect().expect_status(500)
        assert harness.failures("no_agent") == 2
        assert harness.core.dial_count == 0


def test_an_early_dial_whose_own_deadline_is_shorter_is_refused_for_want_of_an_agent() -> None:
    """Not as a timeout of an agent: there was none."""
    with ServerHarness(dial_seconds=2.0, first_agent_seconds=5.0) as harness:
        caller = harness.connect_caller().connect()
        harness.after(2.1)
        caller.expect_status(500)
        assert harness.failures("no_agent") == 1


def test_an_early_dial_that_its_caller_gives_up_is_never_sent() -> None:
    with ServerHarness(first_agent_seconds=5.0) as harness:
        harness.grpc_caller().send(p.DialRequest("tcp", "10.0.0.1:80", 9)).send(p.CloseDial(9))
        assert harness.core.dial_count == 0
        harness.agent().expect_nothing()
        assert harness.failures("frontend_close") == 1


@pytest.mark.parametrize("stop", ["stop_accepting", "close"])
def test_a_server_that_stops_right_after_its_start_refuses_early_dials(stop: str) -> None:
    """A graceful stop does not wait for agents that will not come."""
    with ServerHarness(first_agent_seconds=5.0) as harness:
        connect, grpc_caller = harness.connect_caller().connect(), harness.grpc_caller()
        grpc_caller.send(p.DialRequest("tcp", "10.0.0.1:80", 9))
        getattr(harness.core, stop)()
        connect.expect_status(500)
        grpc_caller.expect(p.DialResponse("No agent available", 0, 9))
        assert harness.core.idle


def test_an_agent_that_cannot_take_an_early_dial_leaves_it_waiting_for_another() -> None:
    with ServerHarness(strategies=[Strategy.DEST_HOST], first_agent_seconds=5.0) as harness:
        caller = harness.connect_caller().connect("node2:10250")
        harness.agent("a", identifiers="host=node1").expect_nothing()
        agent = harness.agent("b", identifiers="host=node2")
        harness.accept(agent, 1)
        caller.expect_status(200)
