"""At the end of a drain an agent closes connections between two calls, never in the middle of one."""

from __future__ import annotations

import pytest

from bootbridge.bounds import BOUNDS
from bootbridge.tunnel.call_pauses import PAUSE_SECONDS, CallPauses
from bootbridge.wire import packets as p
from tests.support.sim_script import AgentHarness, MemoryPort, Peer

STOPPING = "the agent is stopping"


def watched(harness: AgentHarness) -> CallPauses:
    """A drain that began while one connection was open."""
    pauses = CallPauses(harness.core)
    pauses.watch()
    return pauses


def call(harness: AgentHarness, server: Peer, endpoint: MemoryPort) -> None:
    server.send(p.Data(1, b"request"))
    harness.send_from_endpoint(endpoint, b"answer")
    server.expect(p.Data(1, b"answer"))


@pytest.mark.parametrize("go_like", [False, True])
def test_a_connection_between_two_calls_is_closed(go_like: bool) -> None:
    """Both sides see a loss: what the bytes mean is not known, so an answer may be incomplete."""
    with AgentHarness() as harness:
        server = harness.server(go_like=go_like)
        endpoint = harness.endpoint(server)
        pauses = watched(harness)
        call(harness, server, endpoint)
        harness.after(PAUSE_SECONDS)
        pauses.close()
        server.expect(p.CloseResponse(STOPPING, 1))
        assert endpoint.aborted
        assert harness.core.idle
        assert harness.metrics.closed_connections_total.labels("agent drained").value == 1


def test_a_connection_is_not_closed_before_the_pause_is_long_enough() -> None:
    """An answer may come in parts."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        pauses = watched(harness)
        for _ in range(3):
            call(harness, server, endpoint)
            harness.after(PAUSE_SECONDS * 0.9)
            pauses.close()
        assert endpoint.state == "open"


def test_a_connection_with_an_unanswered_request_is_not_closed() -> None:
    """However long its endpoint takes."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        pauses = watched(harness)
        call(harness, server, endpoint)
        server.send(p.Data(1, b"another request"))
        harness.after(60)
        pauses.close()
        assert endpoint.state == "open"


def test_a_connection_whose_endpoint_has_not_sent_since_the_drain_began_is_not_closed() -> None:
    """It may be in the middle of a call that began before."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        call(harness, server, endpoint)
        pauses = watched(harness)
        harness.after(60)
        pauses.close()
        assert endpoint.state == "open"


def test_a_connection_whose_answer_waits_for_its_caller_is_not_closed() -> None:
    """The answer would be cut: it is on its way only when the server has taken it."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        pauses = watched(harness)
        harness.send_from_endpoint(endpoint, b"x" * BOUNDS.credit)
        harness.send_from_endpoint(endpoint, b"x")
        assert len(server.bytes_of(1)) == BOUNDS.credit
        harness.after(60)
        pauses.close()
        assert endpoint.state == "open"
        server.send(p.Credit(1, 1))
        assert server.bytes_of(1) == b"x"
        pauses.close()
        server.expect(p.CloseResponse(STOPPING, 1))


def test_a_connection_that_was_opened_during_the_drain_is_closed_too() -> None:
    """A draining agent serves dials that no other agent can take."""
    with AgentHarness() as harness:
        server = harness.server()
        pauses = watched(harness)
        endpoint = harness.endpoint(server)
        pauses.watch()
        call(harness, server, endpoint)
        harness.after(PAUSE_SECONDS)
        pauses.close()
        server.expect(p.CloseResponse(STOPPING, 1))


def test_a_connection_that_is_closing_anyway_is_left_alone() -> None:
    """Its endpoint has ended, and the rest of its answer is on its way."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        pauses = watched(harness)
        call(harness, server, endpoint)
        endpoint.handler.on_eof(True)
        server.expect(p.CloseResponse("", 1))
        harness.after(PAUSE_SECONDS)
        pauses.close()
