"""Dials: each is answered within its deadline, also if its agent or frontend is lost."""

from __future__ import annotations

import pytest

from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.route import FIRST_BYTES_HOLD_SECONDS
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from tests.support.sim_script import OK, Peer, ServerStage


def _dial_id(agent: Peer) -> int:
    dial = agent.expect_one(p.DialRequest)
    assert isinstance(dial, p.DialRequest)
    return dial.random


def test_an_unanswered_dial_times_out_with_504() -> None:
    """504, no pending dial left, and DIAL_CLS to the agent."""
    with ServerStage(dial_seconds=0.5) as stage:
        agent = stage.agent()
        caller = stage.connect_caller().connect()
        dial = _dial_id(agent)
        stage.after(0.4)
        assert stage.core.dial_count == 1
        stage.after(0.2)
        caller.expect_status(504)
        agent.expect(p.CloseDial(dial))
        assert stage.core.dial_count == 0
        assert stage.failures("backend_dial_timeout") == 1


def test_a_dial_to_an_agent_that_does_not_read_times_out_too() -> None:
    """Also if the DIAL_REQ could not be sent."""
    with ServerStage(dial_seconds=0.5) as stage:
        agent = stage.agent()
        busy = stage.connect_route(agent, 1)
        agent.wire.deaf = True
        while stage.stream_of(agent).idle:
            busy.say(b"x" * 65536)
        caller = stage.connect_caller().connect("10.0.0.2:80")
        stage.after(0.6)
        caller.expect_status(504)
        assert stage.core.dial_count == 0
        agent.wire.deaf = False
        agent.bytes_of(1)
        asked, called_off = agent.heard
        agent.heard.clear()
        assert isinstance(asked, p.DialRequest)
        assert called_off == p.CloseDial(asked.random)


def test_an_agent_that_left_a_dial_unanswered_gets_others_only_if_it_must() -> None:
    """Other agents are preferred until it answers again."""
    with ServerStage(dial_seconds=0.5) as stage:
        stuck = stage.agent("stuck")
        stage.connect_caller().connect()
        dial = _dial_id(stuck)
        stage.after(0.6)
        stuck.expect(p.CloseDial(dial))
        stage.connect_caller().connect()
        again = _dial_id(stuck)  # the only agent so far
        neighbour = stage.agent("neighbour")
        for connect_id in range(1, 9):
            stage.connect_route(neighbour, connect_id)
        assert stage.stream_of(stuck).silent
        stuck.say(p.DialResponse("", 1, again))
        assert not stage.stream_of(stuck).silent
        stage.connect_caller().connect()
        _dial_id(stuck)  # it has the fewest connections


def test_a_dial_without_an_answer_has_the_agents_connection_looked_at() -> None:
    """An agent that is gone altogether is found out by a ping, not by keepalive's hour."""
    with ServerStage(dial_seconds=0.5) as stage:
        agent = stage.agent()
        doubts: list[str] = []
        agent.wire.core.on_suspected = lambda: doubts.append("doubted")
        stage.connect_caller().connect()
        dial = _dial_id(agent)
        stage.after(0.6)
        agent.expect(p.CloseDial(dial))
        assert doubts == ["doubted"]


def test_an_agents_error_reaches_the_caller_in_its_own_words() -> None:
    """A refused endpoint is 502 with the agent's text, counted as error_response."""
    with ServerStage() as stage:
        agent = stage.agent()
        caller = stage.connect_caller().connect()
        agent.say(p.DialResponse("dial tcp: connection refused", 0, _dial_id(agent)))
        assert b"connection refused" in caller.port.written
        caller.expect_status(502)
        assert stage.failures("error_response") == 1


def test_a_late_answer_is_closed_again() -> None:
    """CLOSE_REQ for a connection whose dial was cancelled."""
    with ServerStage(dial_seconds=0.5) as stage:
        agent = stage.agent()
        caller = stage.connect_caller().connect()
        dial = _dial_id(agent)
        stage.after(0.6)
        caller.expect_status(504)
        agent.expect(p.CloseDial(dial)).say(p.DialResponse("", 7, dial)).expect(p.CloseRequest(7))
        assert stage.failures("unrecognized_response") == 1
        assert stage.core.route_count == 0


def test_when_its_only_agent_dies_a_dial_fails_at_once() -> None:
    """Promise 3: not after the timeout, but the moment the agent is lost."""
    with ServerStage() as stage:
        agent = stage.agent()
        caller = stage.connect_caller().connect()
        _dial_id(agent)
        agent.hang_up()
        caller.expect_status(502)
        assert stage.core.dial_count == 0
        assert stage.failures("backend_close") == 1


def test_when_its_agent_dies_a_dial_is_tried_once_on_another() -> None:
    """Nothing was sent yet, so another agent may take it; the caller notices nothing."""
    with ServerStage() as stage:
        first, second = stage.agent("a"), stage.agent("b")
        caller = stage.connect_caller().connect()
        asked, other = (first, second) if first.heard else (second, first)
        _dial_id(asked)
        asked.hang_up()
        stage.accept(other, 1)
        caller.expect(OK)
        assert stage.metrics.dial_retries_total.value == 1


def test_a_dial_is_not_tried_a_third_time() -> None:
    """Promise 6: two agents died on it; a third one is not asked."""
    with ServerStage() as stage:
        agents = [stage.agent(name) for name in "abc"]
        caller = stage.connect_caller().connect()
        for _ in range(2):
            asked = next(agent for agent in agents if agent.heard)
            _dial_id(asked)
            asked.hang_up()
        caller.expect_status(502)


def test_a_retried_dial_keeps_its_first_deadline() -> None:
    """Promise 3: the caller waits no longer because an agent died in between."""
    with ServerStage(dial_seconds=1.0) as stage:
        first, second = stage.agent("a"), stage.agent("b")
        caller = stage.connect_caller().connect()
        asked, other = (first, second) if first.heard else (second, first)
        _dial_id(asked)
        stage.after(0.8)
        asked.hang_up()
        dial = _dial_id(other)
        stage.after(0.3)
        caller.expect_status(504)
        other.expect(p.CloseDial(dial))


def test_an_established_connection_is_never_retried() -> None:
    """Promise 6: bytes may have been sent, so the loss of its agent is the end of it."""
    with ServerStage() as stage:
        agent, _ = stage.agent("a"), stage.agent("b")
        other = stage.peers[1]
        caller = stage.connect_caller().connect()
        asked = agent if agent.heard else other
        stage.accept(asked, 1)
        caller.expect(OK)
        asked.hang_up()
        assert caller.port.state == "aborted"
        assert stage.core.dial_count == 0


def test_a_caller_that_hangs_up_while_dialling_calls_the_dial_off() -> None:
    """The agent gets DIAL_CLS, whichever dialect the caller speaks."""
    with ServerStage() as stage:
        agent = stage.agent()
        stage.connect_caller().connect().end(gone=True)
        asked, called_off = agent.heard
        agent.heard.clear()
        assert isinstance(asked, p.DialRequest)
        assert called_off == p.CloseDial(asked.random)


def test_a_caller_can_call_its_dial_off_by_dial_cls() -> None:
    """DIAL_CLS is honoured: passed on with the server's own dial id, never with the caller's."""
    with ServerStage() as stage:
        agent = stage.agent()
        caller = stage.grpc_caller().say(p.DialRequest("tcp", "10.0.0.1:80", 424242))
        dial = _dial_id(agent)
        caller.say(p.CloseDial(1)).expect_nothing()
        agent.expect_nothing()
        caller.say(p.CloseDial(424242))
        agent.expect(p.CloseDial(dial))


def test_dial_cls_that_crosses_the_answer_closes_the_connection() -> None:
    """It must not stay open: no frontend uses it."""
    with ServerStage() as stage:
        agent = stage.agent()
        stage.grpc_route(agent).say(p.CloseDial(9))
        agent.expect(p.CloseRequest(1))


def test_a_draining_agent_gets_dials_only_if_no_other_can_take_them() -> None:
    """Promise 6: other agents are preferred, but a sole draining agent still serves."""
    with ServerStage() as stage:
        leaving = stage.agent("a").say(p.Drain())
        staying = stage.agent("b")
        for number in range(1, 9):
            stage.connect_route(staying, number)
        staying.hang_up()
        stage.connect_route(leaving, 1)


def test_two_streams_of_one_agent_id_do_not_mix_their_connections() -> None:
    """Connect ids belong to a stream, so the same id on both is two connections."""
    with ServerStage() as stage:
        old = stage.agent("same")
        first = stage.connect_route(old, 1)
        new = stage.agent("same")
        old.say(p.Drain())
        second = stage.connect_route(new, 1)
        first.say(b"to old")
        second.say(b"to new")
        old.expect(p.Data(1, b"to old")).say(p.Data(1, b"from old"))
        new.expect(p.Data(1, b"to new")).say(p.Data(1, b"from new"))
        first.expect(b"from old")
        second.expect(b"from new")


def test_the_end_of_an_old_stream_leaves_the_new_one_of_the_same_agent_alone() -> None:
    """Only routes and dials of the lost stream end with it."""
    with ServerStage() as stage:
        old = stage.agent("same")
        first = stage.connect_route(old, 1)
        old.say(p.Drain())
        new = stage.agent("same")
        second = stage.connect_route(new, 1)
        old.hang_up()
        assert first.port.state == "aborted"
        assert second.port.state == "open"
        assert len(stage.core.agent_registry) == 1
        second.say(b"still here")
        new.expect(p.Data(1, b"still here"))


def test_the_loss_of_one_agent_leaves_the_tables_of_others_alone() -> None:
    with ServerStage() as stage:
        one = stage.agent("a")
        lost_route = stage.connect_route(one, 1)
        two = stage.agent("b")
        one.say(p.Drain())
        kept_route = stage.connect_route(two, 1)
        pending = stage.connect_caller().connect("10.0.0.3:80")
        dial = _dial_id(two)
        one.hang_up()
        assert (lost_route.port.state, kept_route.port.state) == ("aborted", "open")
        assert (stage.core.route_count, stage.core.dial_count) == (1, 1)
        two.say(p.DialResponse("", 2, dial))
        pending.expect(OK)


def test_gauges_and_durations_follow_when_an_agent_is_lost() -> None:
    """The gauges for established and pending decrease, and each lifetime is observed."""
    with ServerStage() as stage:
        agent = stage.agent()
        for number in (1, 2, 3):
            stage.connect_route(agent, number)
        stage.connect_caller().connect()
        _dial_id(agent)
        stage.now += 5.0
        assert _shown(stage) == (3, 1)
        agent.hang_up()
        assert _shown(stage) == (0, 0)
        assert stage.metrics.connection_duration_seconds.count == 3
        assert stage.metrics.connection_duration_seconds.sum == 15.0


def _shown(stage: ServerStage) -> tuple[float, float]:
    gauges = stage.metrics.established_connections, stage.metrics.pending_backend_dials
    established, pending = (next(iter(gauge.samples()))[2] for gauge in gauges)
    return established, pending


def test_ready_backend_connections_counts_streams_with_any_strategy() -> None:
    """Also with several strategies."""
    with ServerStage(strategies=[Strategy.DEST_HOST, Strategy.DEFAULT_ROUTE, Strategy.DEFAULT]) as stage:
        stage.agent("a", identifiers="host=node-1")
        stage.agent("b")
        assert next(iter(stage.metrics.ready_backend_connections.samples()))[2] == 2


def test_an_agent_that_reuses_an_id_breaks_the_old_connection_not_the_new() -> None:
    """A lying or restarted agent cannot make two frontends share one connection."""
    with ServerStage() as stage:
        agent = stage.agent()
        old = stage.connect_route(agent, 1)
        new = stage.connect_route(agent, 1)
        assert (old.port.state, new.port.state) == ("aborted", "open")
        agent.say(p.Data(1, b"for the new one"))
        new.say(b"hi").expect(b"for the new one")
        agent.expect(p.Data(1, b"hi"))
        old.expect(b"")


def test_an_agent_cannot_speak_for_the_dials_and_routes_of_another() -> None:
    """Promise 2: ids are looked up in the tables of the stream on which they arrived."""
    with ServerStage() as stage:
        honest = stage.agent("a")
        caller = stage.connect_route(honest, 1)
        pending = stage.connect_caller().connect("10.0.0.2:80")
        dial = _dial_id(honest)
        adversary = stage.agent("b")
        adversary.say(p.Data(1, b"lies"), p.CloseResponse("", 1), p.DialResponse("", 5, dial), p.End(1))
        adversary.say(p.Credit(1, 1 << 40), p.CloseDial(dial))
        adversary.expect(p.CloseRequest(1), p.CloseRequest(5))
        caller.expect(b"")
        pending.expect(b"")
        assert (stage.core.route_count, stage.core.dial_count) == (1, 1)


def test_direct_dials_are_made_by_the_server_itself() -> None:
    """The direct strategy: bytes both ways without any agent, and both ends close in order."""
    with ServerStage(strategies=[Strategy.DIRECT, Strategy.DEFAULT]) as stage:
        caller = stage.connect_caller().connect("192.0.2.7:80")
        endpoint = stage.dials.asked.pop().succeed()
        caller.expect(OK).say(b"question")
        assert endpoint.written == b"question"
        endpoint.handler.on_bytes(memoryview(b"answer"))
        caller.expect(b"answer").end()
        assert endpoint.state == "finished"
        endpoint.handler.on_eof(False)
        assert (caller.port.state, endpoint.state) == ("closed", "closed")
        assert stage.core.idle


def test_a_grpc_caller_gets_one_close_response_for_a_direct_endpoint() -> None:
    """Promise 5: one CLOSE_RSP behind the data, and nothing after it."""
    with ServerStage(strategies=[Strategy.DIRECT]) as stage:
        caller = stage.grpc_caller().say(p.DialRequest("tcp", "192.0.2.7:80", 9))
        endpoint = stage.dials.asked.pop().succeed()
        endpoint.handler.on_bytes(memoryview(b"all"))
        endpoint.handler.on_eof(False)
        stage.after(FIRST_BYTES_HOLD_SECONDS)
        caller.expect(p.DialResponse("", 1, 9), p.Data(1, b"all"), p.CloseResponse("", 1))
        assert endpoint.state == "closed"


# --- addresses without end


def test_an_address_that_no_name_can_have_is_refused_at_once() -> None:
    """Promise 4: what waits for an agent is bounded in packets, so one packet must not be megabytes."""
    with ServerStage() as stage:
        agent = stage.agent()
        endless = "a" * 100_000 + ":80"
        caller = stage.grpc_caller().say(p.DialRequest("tcp", endless, 7))
        answer = caller.expect_one(p.DialResponse)
        assert isinstance(answer, p.DialResponse)
        assert (answer.random, answer.connect_id) == (7, 0)
        assert len(answer.error) < 100
        stage.grpc_caller().say(p.DialRequest(endless, "10.0.0.1:80", 8)).expect_one(p.DialResponse)
        stage.connect_caller().connect("a" * 1000 + ":80").expect_status(502)
        agent.expect_nothing()
        assert stage.failures("error_response") == 3
        assert stage.core.dial_count == 0


def test_the_longest_name_there_is_can_be_dialled() -> None:
    """255 characters of a name, and its port."""
    with ServerStage() as stage:
        agent = stage.agent()
        name = ".".join(["a" * 63] * 4)[:255]
        stage.connect_caller().connect(f"{name}:65535")
        dial = agent.expect_one(p.DialRequest)
        assert isinstance(dial, p.DialRequest)
        assert dial.address == f"{name}:65535"
        agent.say(p.DialResponse("no such host", 0, dial.random))


# --- who may be an agent


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ([], "expected one agent ID in the context, got []"),
        ([("agentid", "a"), ("agentid", "b")], "expected one agent ID in the context, got [a b]"),
        (
            [("agentid", "a"), ("agentidentifiers", "ipv4=10.0.0.1"), ("agentidentifiers", "host=b")],
            "expected at most one set of agent identifiers in the context, got [ipv4=10.0.0.1 host=b]",
        ),
        ([("agentid", "a"), ("agentidentifiers", "ipv4=%zz")], "invalid URL escape"),
    ],
    ids=["no id", "two ids", "two sets of identifiers", "garbled identifiers"],
)
def test_metadata_that_no_agent_sends_is_refused_with_the_reason(
    metadata: list[tuple[str, str]], complaint: str
) -> None:
    """No or several agent ids, several or invalid identifiers."""
    with ServerStage() as stage:
        caller = stage.agent_call(metadata)
        assert caller.status == grpc.UNKNOWN
        assert complaint in grpc.status_of(caller.headers[-1][0])[1]
        assert not stage.core.agent_registry


@pytest.mark.parametrize("identifiers", ["", "ipv4=10.0.0.1&host=node1"])
def test_an_agent_may_say_what_it_reaches(identifiers: str) -> None:
    with ServerStage() as stage:
        stage.agent("a", identifiers=identifiers)
        assert [agent.agent_id for agent in stage.core.agent_registry] == ["a"]


def test_a_network_that_is_none_is_named_in_the_log() -> None:
    """It matches nothing, so the operator finds it in the log."""
    with ServerStage() as stage:
        stage.agent("a", identifiers="cidr=10.0.0.0/99&cidr=10.0.0.0/8")
        assert stage.event_log.about("agent advertises an invalid CIDR") == [
            {"agent": "a", "cidr": "10.0.0.0/99"}
        ]
