"""Stopping a server: running connections may finish, and interrupted ones are reset."""

from __future__ import annotations

import pytest

from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from tests.support.sim_script import ServerHarness


def test_a_stopping_server_refuses_new_dials_and_lets_running_ones_finish() -> None:
    """Graceful stop: new callers are refused and counted, established connections continue."""
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
def test_only_our_agents_are_notified_when_a_stop_begins(go_like: bool) -> None:
    """They dial another server. A Go agent would treat the GOAWAY as the loss of its open connections."""
    with ServerHarness() as harness:
        agent = harness.agent(go_like=go_like)
        running = harness.connect_route(agent)
        harness.core.stop_accepting()
        running.send(b"on")
        agent.expect(p.Data(1, b"on"))
        assert agent.stream.connection.peer_going_away != go_like


def test_a_stopping_server_waits_for_pending_dials() -> None:
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_caller().connect()
        harness.core.stop_accepting()
        assert not harness.core.idle
        harness.accept(agent, 1)
        caller.expect_status(200)


def test_close_resets_open_connections() -> None:
    """Promise 1: a caller must be able to distinguish a truncated answer from a complete one."""
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
        agent.expect(p.CloseDial(dial.random))
        assert agent.status == grpc.UNAVAILABLE
        agent.disconnect()
        assert harness.core.idle
        assert not harness.core.connect_frontends


def test_close_does_not_end_an_incomplete_grpc_upload_in_order() -> None:
    """Promise 1: the agent loses its stream, so the endpoint is reset; it receives no CLOSE_REQ."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.grpc_route(agent).send(p.Data(1, b"half of it"))
        harness.core.close()
        caller.expect(p.CloseResponse("the agent's connection was lost", 1)).cancel()
        agent.expect(p.Data(1, b"half of it"))
        assert agent.over


def test_a_stopping_server_does_not_retry_a_dial() -> None:
    with ServerHarness() as harness:
        first, second = harness.agent("a"), harness.agent("b")
        caller = harness.connect_caller().connect()
        dialled = first if first.received else second
        dialled.expect_one(p.DialRequest)
        harness.core.stop_accepting()
        dialled.disconnect()
        caller.expect_status(502)


def test_no_state_is_left_when_all_callers_are_gone() -> None:
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
