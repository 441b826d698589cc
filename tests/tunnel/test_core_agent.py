"""The agent's core: dials, endpoints, closes and drain, with a scripted server."""

from __future__ import annotations

import pytest

from bootbridge.proxy_agent.status_document import core_status
from bootbridge.runtime.sliced_work import run_at_once
from bootbridge.runtime.status_query import StatusQuery
from bootbridge.wire import packets as p
from tests.support.sim_script import AgentHarness


@pytest.mark.parametrize("ours", [True, False], ids=["closed by us", "lost"])
def test_only_a_server_that_was_lost_counts_as_a_failure(ours: bool) -> None:
    """An agent behind a balancer closes every second connection itself, as a duplicate."""
    with AgentHarness() as harness:
        server = harness.server()
        (stream,) = harness.core.streams
        stream.closed_by_us = ours
        server.disconnect()
        assert harness.metrics.server_connection_failure_count.labels("from_server").value == (not ours)


def test_a_dial_opens_a_connection_with_bytes_in_both_directions() -> None:
    """A request through DIAL and DATA, and CLOSE_RSP without error at the end."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        server.send(p.Data(1, b"GET /"))
        assert endpoint.written == b"GET /"
        harness.send_from_endpoint(endpoint, b"200 OK")
        endpoint.handler.on_eof(True)
        server.expect(p.Data(1, b"200 OK"), p.CloseResponse("", 1))
        assert harness.core.endpoint_count == 0
        assert harness.core.idle


def test_a_failed_dial_is_answered_with_its_reason_and_counted() -> None:
    """The error text reaches the server, and the metric has a label for timeouts."""
    with AgentHarness() as harness:
        server = harness.server()
        server.send(p.DialRequest("tcp", "10.0.0.1:80", 5), p.DialRequest("tcp", "10.0.0.2:80", 6))
        refused, timed_out = harness.dials.requested
        refused.fail("dial tcp 10.0.0.1:80: connect: connection refused")
        timed_out.fail("dial tcp 10.0.0.2:80: i/o timeout", timed_out=True)
        server.expect(
            p.DialResponse("dial tcp 10.0.0.1:80: connect: connection refused", 0, 5),
            p.DialResponse("dial tcp 10.0.0.2:80: i/o timeout", 0, 6),
        )
        failures = harness.metrics.endpoint_dial_failure_total
        assert (failures.labels("unknown").value, failures.labels("timeout").value) == (1, 1)


def test_an_address_longer_than_any_name_is_not_dialled_and_not_repeated() -> None:
    """Promise 4: queued answers are bounded in packets, so an answer must be small."""
    with AgentHarness() as harness:
        server = harness.server()
        server.send(p.DialRequest("tcp", "a" * 100_000 + ":80", 5))
        answer = server.expect_one(p.DialResponse)
        assert (answer.random, answer.connect_id) == (5, 0)
        assert 0 < len(answer.error) < 100
        assert harness.dials.requested == []
        assert harness.metrics.endpoint_dial_failure_total.labels("unknown").value == 1
        assert harness.core.idle


def test_close_req_is_answered_once_and_then_unknown() -> None:
    """CLOSE_REQ gets CLOSE_RSP "", a second one gets "Unknown connectID"."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        server.send(p.CloseRequest(1)).expect(p.CloseResponse("", 1))
        assert endpoint.state == "closed"
        server.send(p.CloseRequest(1)).expect(p.CloseResponse("Unknown connectID", 1))


def test_data_for_an_unknown_id_is_answered_with_a_close_of_that_id() -> None:
    """So that a server with a stale entry can remove it."""
    with AgentHarness() as harness:
        harness.server().send(p.Data(77, b"x")).expect(p.CloseResponse("unrecognized connectID", 77))


def test_dial_cls_cancels_a_pending_dial() -> None:
    """A cancelled dial opens no connection and sends no DIAL_RSP."""
    with AgentHarness() as harness:
        server = harness.server().send(p.DialRequest("tcp", "10.0.0.1:80", 5))
        (dial,) = harness.dials.requested
        server.send(p.CloseDial(5)).expect_nothing()
        assert dial.cancelled
        assert harness.core.idle


def test_dial_cls_for_an_unknown_dial_cancels_nothing() -> None:
    with AgentHarness() as harness:
        server = harness.server().send(p.DialRequest("tcp", "10.0.0.1:80", 5), p.CloseDial(6))
        (dial,) = harness.dials.requested
        assert not dial.cancelled
        dial.succeed()
        server.expect(p.DialResponse("", 1, 5))


def test_a_second_dial_with_a_pending_id_is_refused() -> None:
    """The first dial still succeeds."""
    with AgentHarness() as harness:
        server = harness.server().send(
            p.DialRequest("tcp", "10.0.0.1:80", 5), p.DialRequest("tcp", "10.0.0.2:80", 5)
        )
        server.expect(p.DialResponse("a dial with this id is already pending", 0, 5))
        (dial,) = harness.dials.requested
        dial.succeed()
        server.expect(p.DialResponse("", 1, 5))


def test_the_loss_of_a_server_ends_its_dials_and_endpoints() -> None:
    """Dials are cancelled, endpoints are reset, and those of other servers are not affected."""
    with AgentHarness() as harness:
        lost, kept = harness.server(), harness.server()
        endpoint = harness.endpoint(lost)
        other = harness.endpoint(kept)
        lost.send(p.DialRequest("tcp", "10.0.0.9:80", 8))
        dial = harness.dials.requested.pop()
        lost.disconnect()
        assert dial.cancelled
        assert endpoint.state == "aborted", "an upload that may be incomplete must not look complete"
        assert other.state == "open"
        assert len(harness.core.streams) == 1
        harness.send_from_endpoint(other, b"still here")
        kept.expect(p.Data(1, b"still here"))


def test_the_same_connect_id_of_two_servers_is_two_connections() -> None:
    """Tables belong to a stream, so equal ids do not collide."""
    with AgentHarness() as harness:
        one, two = harness.server(), harness.server()
        first, second = harness.endpoint(one), harness.endpoint(two)
        one.send(p.Data(1, b"one"))
        two.send(p.Data(1, b"two"))
        assert (first.written, second.written) == (b"one", b"two")
        one.send(p.CloseRequest(1)).expect(p.CloseResponse("", 1))
        assert (first.state, second.state) == ("closed", "open")


def test_drain_is_sent_without_waiting_for_a_packet() -> None:
    """Every server receives DRAIN at once, and connections stay open."""
    with AgentHarness() as harness:
        one, two = harness.server(), harness.server()
        endpoint = harness.endpoint(one)
        harness.core.drain()
        one.expect(p.Drain())
        two.expect(p.Drain())
        harness.send_from_endpoint(endpoint, b"goes on")
        one.expect(p.Data(1, b"goes on"))
        assert not harness.core.idle


def test_the_upload_is_written_before_the_endpoint_is_closed() -> None:
    """CLOSE_REQ behind DATA: the socket is closed in order, behind the unwritten bytes."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        endpoint.stalled = True
        server.send(p.Data(1, b"last bytes"), p.CloseRequest(1)).expect(p.CloseResponse("", 1))
        assert (endpoint.state, bytes(endpoint.waiting)) == ("closed", b"last bytes")


def test_data_of_the_endpoint_is_sent_before_its_close() -> None:
    """CLOSE_RSP waits behind data without credit."""
    with AgentHarness() as harness:
        server = harness.server()
        endpoint = harness.endpoint(server)
        for _ in range(5):
            harness.send_from_endpoint(endpoint, b"x" * 262_144)
        endpoint.handler.on_eof(True)
        got = len(server.bytes_of(1))
        assert got < 5 * 262_144
        server.expect_nothing()
        server.send(p.Credit(1, 1 << 20))
        assert got + len(server.bytes_of(1)) == 5 * 262_144
        server.expect(p.CloseResponse("", 1))


def test_a_broken_endpoint_is_reported_with_its_reason() -> None:
    """The server must be able to distinguish it from an orderly end."""
    with AgentHarness() as harness:
        server = harness.server()
        harness.endpoint(server).handler.on_lost("connection reset by peer")
        server.expect(p.CloseResponse("connection reset by peer", 1))


def test_a_server_without_the_extension_receives_the_original_protocol() -> None:
    """No CREDIT, no END: when the endpoint half-closes, the whole connection is closed."""
    with AgentHarness() as harness:
        server = harness.server(go_like=True)
        endpoint = harness.endpoint(server)
        for _ in range(20):
            server.send(p.Data(1, b"x" * 100_000))
        assert len(endpoint.written) == 2_000_000
        endpoint.handler.on_eof(False)
        server.expect(p.CloseResponse("", 1))


def test_status_and_metrics_agree() -> None:
    """Promise 8, on the agent."""
    with AgentHarness() as harness:
        server = harness.server()
        harness.endpoint(server)
        gauge = harness.metrics.open_endpoint_connections
        status = run_at_once(core_status(harness.core, StatusQuery()))
        assert next(iter(gauge.samples()))[2] == status["routes"] == 1


def test_destinations_count_connections_of_every_page_and_recent_dials() -> None:
    """Filter and pages change the listed connections only."""
    with AgentHarness() as harness:
        server = harness.server()
        for number in (1, 2):
            harness.endpoint(server, number, number)
        server.send(p.DialRequest("tcp", "10.0.0.9:80", 99))
        reason = "dial tcp 10.0.0.9:80: connect: connection refused"
        harness.dials.requested[-1].fail(reason)
        server.expect(p.DialResponse(reason, 0, 99))
        query = StatusQuery(connections_limit=1, filter="10.0.0.9")
        status = run_at_once(core_status(harness.core, query))
        assert status["connections"] == []
        first, second = status["destinations"]
        assert (first["connections"], first["recentDials"], first["recentFailures"]) == (2, 2, 0)
        expected = {"destination": "10.0.0.9:80", "connections": 0, "recentDials": 1, "recentFailures": 1}
        assert second == expected
