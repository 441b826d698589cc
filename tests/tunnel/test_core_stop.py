"""Stopping a server: running connections may finish, and what is cut is seen to be cut."""

from __future__ import annotations

import pytest

from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from tests.support.sim_script import ServerHarness


def test_a_stopping_server_refuses_new_dials_and_lets_running_ones_finish() -> None:
    """Graceful stop: new callers are refused and counted, established connections go on to their end."""
    with ServerHarness() as harness:
        agent = harness.agent()
        running = harness.connect_route(agent)
        harness.core.stop_accepting()
        harness.connect_caller().connect().expect_status(500)
        assert harness.failures("no_agent") == 1
        assert not harness.core.ready
        assert not harness.core.idle
        running.send(b"still here")
        agent.expect(p.Data(1, b"still here")).send(p.CloseResponse("", 1))
        assert harness.core.idle


@pytest.mark.parametrize("go_like", [False, True])
def test_our_own_agents_hear_of_a_stop_at_its_beginning(go_like: bool) -> None:
    """They look for another server; a Go agent would take the word for a loss of all that runs."""
    with ServerHarness() as harness:
        agent = harness.agent(go_like=go_like)
        running = harness.connect_route(agent)
        harness.core.stop_accepting()
        running.send(b"on")
        agent.expect(p.Data(1, b"on"))
        assert agent.stream.connection.peer_going_away != go_like


def test_a_dial_under_way_is_waited_for() -> None:
    """Idle means: no dial, no connection."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_caller().connect()
        harness.core.stop_accepting()
        assert not harness.core.idle
        harness.accept(agent, 1)
        caller.expect_status(200)


def test_at_the_end_connections_are_broken_not_closed() -> None:
    """Promise 1: a caller must not take half an answer for a whole one because the server went."""
    with ServerHarness(strategies=[Strategy.DIRECT, Strategy.DEFAULT]) as harness:
        agent = harness.agent()
        through_agent = harness.connect_route(agent)
        direct = harness.connect_caller().connect("192.0.2.1:80")
        endpoint = harness.dials.requested.pop().succeed()
        direct.expect_status(200)
        pending = harness.connect_caller().connect("10.0.0.9:80")
        dial = agent.expect_one(p.DialRequest)
        harness.core.close()
        assert through_agent.port.state == direct.port.state == endpoint.state == "aborted"
        pending.expect_status(500)
        agent.expect(p.CloseDial(dial.random))  # type: ignore[union-attr]
        assert agent.status == grpc.UNAVAILABLE
        agent.disconnect()
        assert harness.core.idle
        assert not harness.core.connect_frontends


def test_at_the_end_a_grpc_callers_half_upload_is_not_closed_in_order() -> None:
    """Promise 1: the agent loses its stream, so the endpoint is reset; no CLOSE_REQ says all is well."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.grpc_route(agent).send(p.Data(1, b"half of it"))
        harness.core.close()
        caller.expect(p.CloseResponse("the agent's connection was lost", 1)).cancel()
        agent.expect(p.Data(1, b"half of it"))
        assert agent.over


def test_an_agent_that_dies_while_stopping_causes_no_retry() -> None:
    """A server that goes does not start new things."""
    with ServerHarness() as harness:
        first, second = harness.agent("a"), harness.agent("b")
        caller = harness.connect_caller().connect()
        dialled = first if first.received else second
        dialled.expect_one(p.DialRequest)
        harness.core.stop_accepting()
        dialled.disconnect()
        caller.expect_status(502)


def test_when_all_callers_are_gone_nothing_is_left() -> None:
    """Promise 7: no frontend, dial, route, queued packet or timer."""
    with ServerHarness() as harness:
        agent = harness.agent()
        for number in range(1, 6):
            harness.connect_route(agent, number).send(b"x").end(gone=True)
            agent.expect(p.Data(number, b"x"), p.CloseRequest(number)).send(p.CloseResponse("", number))
        harness.grpc_route(agent, 9).cancel()
        agent.expect(p.CloseRequest(9)).send(p.CloseResponse("", 9))
        assert harness.core.idle
        assert not harness.core.connect_frontends
        assert not harness.core.grpc_frontends
        assert len(harness.timers) == 0
        stream = harness.stream_of(agent)
        assert (stream.routes, stream.receivers, stream.dials, stream.queued_bytes) == ({}, {}, {}, 0)
