"""Stopping a server: running connections may finish, and what is cut is seen to be cut."""

from __future__ import annotations

import pytest

from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from tests.support.sim_script import ServerStage


def test_a_stopping_server_refuses_new_dials_and_lets_running_ones_finish() -> None:
    """Graceful stop: new callers are refused and counted, established connections go on to their end."""
    with ServerStage() as stage:
        agent = stage.agent()
        running = stage.connect_route(agent)
        stage.core.stop_accepting()
        stage.connect_caller().connect().expect_status(500)
        assert stage.failures("no_agent") == 1
        assert not stage.core.ready
        assert not stage.core.idle
        running.say(b"still here")
        agent.expect(p.Data(1, b"still here")).say(p.CloseResponse("", 1))
        assert stage.core.idle


@pytest.mark.parametrize("go_like", [False, True])
def test_our_own_agents_hear_of_a_stop_at_its_beginning(go_like: bool) -> None:
    """They look for another server; a Go agent would take the word for a loss of all that runs."""
    with ServerStage() as stage:
        agent = stage.agent(go_like=go_like)
        running = stage.connect_route(agent)
        stage.core.stop_accepting()
        running.say(b"on")
        agent.expect(p.Data(1, b"on"))
        assert agent.stream.connection.peer_going_away != go_like


def test_a_dial_under_way_is_waited_for() -> None:
    """Idle means: no dial, no connection."""
    with ServerStage() as stage:
        agent = stage.agent()
        caller = stage.connect_caller().connect()
        stage.core.stop_accepting()
        assert not stage.core.idle
        stage.accept(agent, 1)
        caller.expect_status(200)


def test_at_the_end_connections_are_broken_not_closed() -> None:
    """Promise 1: a caller must not take half an answer for a whole one because the server went."""
    with ServerStage(strategies=[Strategy.DIRECT, Strategy.DEFAULT]) as stage:
        agent = stage.agent()
        through_agent = stage.connect_route(agent)
        direct = stage.connect_caller().connect("192.0.2.1:80")
        endpoint = stage.dials.asked.pop().succeed()
        direct.expect_status(200)
        pending = stage.connect_caller().connect("10.0.0.9:80")
        dial = agent.expect_one(p.DialRequest)
        stage.core.close()
        assert through_agent.port.state == direct.port.state == endpoint.state == "aborted"
        pending.expect_status(500)
        agent.expect(p.CloseDial(dial.random))  # type: ignore[union-attr]
        assert agent.status == grpc.UNAVAILABLE
        agent.hang_up()
        assert stage.core.idle
        assert not stage.core.connect_frontends


def test_at_the_end_a_grpc_callers_half_upload_is_not_closed_in_order() -> None:
    """Promise 1: the agent loses its stream, so the endpoint is reset; no CLOSE_REQ says all is well."""
    with ServerStage() as stage:
        agent = stage.agent()
        caller = stage.grpc_route(agent).say(p.Data(1, b"half of it"))
        stage.core.close()
        caller.expect(p.CloseResponse("the agent's connection was lost", 1)).cancel()
        agent.expect(p.Data(1, b"half of it"))
        assert agent.over


def test_an_agent_that_dies_while_stopping_causes_no_retry() -> None:
    """A server that goes does not start new things."""
    with ServerStage() as stage:
        first, second = stage.agent("a"), stage.agent("b")
        caller = stage.connect_caller().connect()
        asked = first if first.heard else second
        asked.expect_one(p.DialRequest)
        stage.core.stop_accepting()
        asked.hang_up()
        caller.expect_status(502)


def test_when_all_callers_are_gone_nothing_is_left() -> None:
    """Promise 7: no frontend, dial, route, queued packet or timer."""
    with ServerStage() as stage:
        agent = stage.agent()
        for number in range(1, 6):
            stage.connect_route(agent, number).say(b"x").end(gone=True)
            agent.expect(p.Data(number, b"x"), p.CloseRequest(number)).say(p.CloseResponse("", number))
        stage.grpc_route(agent, 9).cancel()
        agent.expect(p.CloseRequest(9)).say(p.CloseResponse("", 9))
        assert stage.core.idle
        assert not stage.core.connect_frontends
        assert not stage.core.grpc_frontends
        assert len(stage.timers) == 0
        stream = stage.stream_of(agent)
        assert (stream.routes, stream.receivers, stream.dials, stream.queued_bytes) == ({}, {}, {}, 0)
