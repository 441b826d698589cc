"""The objects of the tunnel follow the tables of close states: each is driven through every pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bootbridge.ports.close_states import (
    AGENT_ROUTE,
    DIRECT_ROUTE,
    ENDPOINT,
    FRONTEND,
    PACKET_STREAM,
    CloseTable,
    Event,
    State,
)
from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.frontend import DialFailure, DialFailureCause
from bootbridge.wire import packets as p
from tests.support.close_state_walk import Driven, check, pairs
from tests.support.sim_script import AgentHarness, ServerHarness

FAILURE = DialFailure(DialFailureCause.ENDPOINT, "refused")


class FakeRoute:
    def upload(self, data: memoryview) -> None: ...
    def front_ended(self) -> None: ...
    def front_gone(self, reason: str) -> None: ...
    def front_drained(self) -> None: ...


def connect_frontend() -> Driven:
    harness = ServerHarness()
    harness.agent()
    caller = harness.connect_caller()
    front: Any = caller.port.handler
    head = memoryview(b"CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\n")
    return Driven(
        front,
        {
            Event.REQUEST: lambda: front.on_bytes(head),
            Event.ESTABLISHED: lambda: front.established(FakeRoute(), 1),
            Event.REFUSED: lambda: front.refused(FAILURE),
            Event.CALLER_ENDS: lambda: front.on_eof(False),
            Event.CALLER_GONE: lambda: front.on_lost("reset"),
            Event.CLOSE: lambda: front.close(""),
        },
    )


def grpc_frontend() -> Driven:
    harness = ServerHarness()
    harness.agent()
    harness.grpc_caller()
    (front,) = harness.core.grpc_frontends
    return Driven(
        front,
        {
            Event.REQUEST: lambda: front.on_packet(p.DialRequest("tcp", "10.0.0.1:80", 9)),
            Event.ESTABLISHED: lambda: front.established(FakeRoute(), 1),  # type: ignore[arg-type]
            Event.REFUSED: lambda: front.refused(FAILURE),
            Event.CALLER_GONE: front.on_end,
            Event.CLOSE: lambda: front.close(""),
        },
    )


def agent_route() -> Driven:
    harness = ServerHarness()
    agent = harness.agent()
    harness.connect_route(agent)
    route = harness.stream_of(agent).routes[1]
    return Driven(
        route,
        {
            Event.CALLER_ENDS: route.front_ended,
            Event.CALLER_GONE: lambda: route.front_gone("gone"),
            Event.ENDPOINT_ENDS: route.on_ended,
            Event.ENDPOINT_CLOSED: lambda: route.on_closed(""),
            Event.STREAM_LOST: lambda: route.on_agent_lost("lost"),
            Event.OVERRUN: lambda: route.close_overrun("stalled"),
            Event.IDLE: route._half_open_idle,
            Event.TIMED_OUT: route._closing_timed_out,
        },
    )


def direct_route() -> Driven:
    harness = ServerHarness(strategies=(Strategy.DIRECT,))
    caller = harness.connect_caller().connect("192.0.2.1:80")
    port = harness.dials.requested.pop().succeed()
    route: Any = port.handler

    def endpoint_closed() -> None:
        caller.port.half_closes = False
        route.on_eof(False)

    return Driven(
        route,
        {
            Event.CALLER_ENDS: route.front_ended,
            Event.CALLER_GONE: lambda: route.front_gone("gone"),
            Event.ENDPOINT_ENDS: lambda: route.on_eof(False),
            Event.ENDPOINT_CLOSED: endpoint_closed,
            Event.ENDPOINT_LOST: lambda: route.on_lost("reset"),
            Event.IDLE: route._half_open_idle,
            Event.CLOSE: lambda: route.stop("stopping"),
        },
    )


def endpoint() -> Driven:
    """With a byte that waits for credit, so that the close has to wait."""
    harness = AgentHarness()
    port = harness.endpoint(harness.server())
    subject: Any = port.handler
    subject.send_queue.credit = 0
    harness.send_from_endpoint(port, b"x")
    return Driven(
        subject,
        {
            Event.CALLER_ENDS: subject.on_server_ended,
            Event.ENDPOINT_ENDS: lambda: subject.on_eof(False),
            Event.ENDPOINT_CLOSED: lambda: subject.on_eof(True),
            Event.ENDPOINT_LOST: lambda: subject.on_lost("reset"),
            Event.OVERRUN: lambda: subject.close_overrun("stalled"),
            Event.CLOSE_REQUESTED: subject.on_close_request,
            Event.RESET_REQUESTED: subject.on_reset_request,
            Event.STREAM_LOST: subject.on_server_lost,
            Event.FLUSHED: lambda: subject.send_queue.grant(100),
        },
    )


def packet_stream() -> Driven:
    """The stream of an agent, which does not finish by itself, on a full connection: its trailers wait."""
    harness = AgentHarness()
    harness.server()
    (subject,) = harness.core.streams
    stream = subject.stream
    stream.connection.writable = False

    def flush() -> None:
        stream.connection.writable = True
        subject.on_ready()

    return Driven(
        subject,
        {
            Event.PEER_ENDS: subject.on_end,
            Event.FINISH: lambda: subject.finish(0),
            Event.FLUSHED: flush,
        },
        "stream_state",
    )


KINDS: dict[Callable[[], Driven], CloseTable] = {
    connect_frontend: FRONTEND,
    grpc_frontend: FRONTEND,
    agent_route: AGENT_ROUTE,
    direct_route: DIRECT_ROUTE,
    endpoint: ENDPOINT,
    packet_stream: PACKET_STREAM,
}


WALK = [(make, *pair) for make, table in KINDS.items() for pair in pairs(set(make().drivers), table)]


@pytest.mark.parametrize(
    ("make", "state", "event"), WALK, ids=lambda part: getattr(part, "__name__", str(part))
)
def test_an_object_follows_its_table(make: Callable[[], Driven], state: State, event: Event) -> None:
    """An event that the table does not list does not change the state."""
    check(make(), KINDS[make], state, event)
