"""The gRPC and HTTP CONNECT frontends of the server, from the side of their callers."""

from __future__ import annotations

import pytest

from bootbridge.bounds import BOUNDS
from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.frontend import HEAD_SECONDS_MAX
from bootbridge.tunnel.route import FIRST_BYTES_HOLD_SECONDS, FIRST_BYTES_HOLD_SECONDS_MAX
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from tests.support.sim_script import OK, ConnectCaller, ServerHarness


def test_without_an_agent_a_grpc_dial_is_refused_at_once() -> None:
    """DIAL_RSP has the error "No agent available"."""
    with ServerHarness() as harness:
        caller = harness.grpc_caller().send(p.DialRequest("tcp", "10.0.0.1:80", 9))
        caller.expect(p.DialResponse("No agent available", 0, 9))
        assert harness.failures("no_agent") == 1


def test_without_an_agent_a_connect_is_refused_and_counted() -> None:
    """The HTTP CONNECT frontend counts this dial failure too."""
    with ServerHarness() as harness:
        harness.connect_caller().connect().expect_status(500)
        assert harness.failures("no_agent") == 1


def test_a_pending_dial_is_cancelled_when_its_caller_disconnects() -> None:
    """The agent receives DIAL_REQ, then DIAL_CLS, and no packet that was sent in between."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.grpc_caller().send(p.DialRequest("tcp", "10.0.0.1:80", 9))
        dial = agent.expect_one(p.DialRequest)
        caller.send(p.Data(4, b"early"), p.CloseRequest(4))
        caller.expect(
            p.CloseResponse("backend not initialized", 4), p.CloseResponse("backend uninitialized", 4)
        )
        caller.cancel()
        agent.expect(p.CloseDial(dial.random))
        assert harness.core.dial_count == 0
        assert harness.failures("frontend_close") == 1


def test_data_before_a_dial_is_answered_with_a_close() -> None:
    """CLOSE_RSP has the error "backend not initialized"."""
    with ServerHarness() as harness:
        harness.grpc_caller().send(p.Data(1, b"x")).expect(p.CloseResponse("backend not initialized", 1))


def test_a_caller_that_uses_a_foreign_id_loses_only_its_own_connection() -> None:
    """Both ids are closed towards this caller; the other caller's connection is not affected."""
    with ServerHarness() as harness:
        agent = harness.agent()
        victim = harness.grpc_route(agent, 1)
        adversary = harness.grpc_route(agent, 2)
        adversary.send(p.Data(1, b"not mine"))
        adversary.expect(
            p.CloseResponse("mismatched connection IDs", 2), p.CloseResponse("mismatched connection IDs", 1)
        )
        agent.expect(p.CloseRequest(2))
        victim.send(p.Data(1, b"mine"))
        agent.expect(p.Data(1, b"mine"))


def test_a_caller_cannot_close_the_connection_of_another() -> None:
    """Promise 2: CLOSE_REQ for the id of another caller has no effect."""
    with ServerHarness() as harness:
        agent = harness.agent()
        harness.grpc_route(agent, 1)
        harness.grpc_route(agent, 2).send(p.CloseRequest(1)).expect_nothing()
        agent.expect_nothing()
        assert harness.core.route_count == 2


def test_a_proxy_stream_is_for_one_dial() -> None:
    """A second DIAL_REQ on the same stream is refused, and the first connection stays open."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.grpc_route(agent)
        caller.send(p.DialRequest("tcp", "10.0.0.2:80", 10))
        caller.expect(p.DialResponse("a Proxy stream is for one connection only", 0, 10))
        caller.send(p.Data(1, b"still here"))
        agent.expect(p.Data(1, b"still here"))


def test_a_callers_close_is_answered_and_passed_on() -> None:
    """CLOSE_REQ goes behind the data to the agent, and the caller gets its CLOSE_RSP."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.grpc_route(agent)
        caller.send(p.Data(1, b"last bytes"), p.CloseRequest(1)).expect(p.CloseResponse("", 1))
        agent.expect(p.Data(1, b"last bytes"), p.CloseRequest(1)).send(p.CloseResponse("", 1))
        assert harness.stream_of(agent).routes == {}


def test_a_full_caller_is_paused_and_drains_without_deadlock() -> None:
    """The gauge is 1 while the agent does not read, and 11 more packets are still delivered."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.grpc_route(agent)
        agent.wire.stalled = True
        chunk = b"x" * 65536
        caller.send(*[p.Data(1, chunk)] * 30)
        gauge = harness.metrics.full_receive_channels.labels("Proxy")
        assert [value for _, _, value in gauge.samples()] == [1]
        caller.send(*[p.Data(1, b"y")] * 11)
        agent.wire.stalled = False
        sent = 30 * len(chunk) + 11
        got = b""
        while len(got) < sent:
            piece = agent.bytes_of(1)
            assert piece, f"stuck after {len(got)} of {sent} bytes"
            got += piece
            agent.send(p.Credit(1, len(piece)))
        assert got == chunk * 30 + b"y" * 11
        assert [value for _, _, value in gauge.samples()] == [0]


def test_no_byte_precedes_the_200() -> None:
    """DATA behind DIAL_RSP is held until the caller has sent something, and the 200 is first."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_caller().connect()
        dial = agent.expect_one(p.DialRequest)
        agent.send(p.DialResponse("", 1, dial.random), p.Data(1, b"banner"))
        caller.expect(OK)
        caller.send(b"hello").expect(b"banner")
        agent.expect(p.Data(1, b"hello"))


def test_bytes_of_an_endpoint_that_sends_first_arrive_after_ten_milliseconds() -> None:
    """A caller that sends nothing receives the first bytes too, but never in one read with the 200."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent)
        agent.send(p.Data(1, b"banner"))
        caller.expect(b"")
        harness.after(FIRST_BYTES_HOLD_SECONDS / 2)
        caller.expect(b"")
        harness.after(FIRST_BYTES_HOLD_SECONDS)
        caller.expect(b"banner")


def test_an_end_right_behind_the_first_bytes_is_held_with_them() -> None:
    """After the hold the bytes are delivered completely, then the close."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent)
        agent.send(p.Data(1, b"bye"), p.CloseResponse("", 1))
        caller.expect(b"")
        assert caller.port.state == "open"
        assert not harness.core.idle
        harness.after(FIRST_BYTES_HOLD_SECONDS)
        caller.expect(b"bye")
        assert caller.port.state == "closed"
        assert harness.core.idle


def test_an_end_in_the_first_bytes_hold_survives_the_loss_of_the_agent() -> None:
    """The endpoint had closed in order before, so the caller sees an orderly close."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent)
        agent.send(p.Data(1, b"bye"), p.CloseResponse("", 1)).disconnect()
        caller.expect(b"bye")
        assert caller.port.state == "closed"


def caller_that_does_not_read(harness: ServerHarness) -> ConnectCaller:
    """Returns a caller whose connection is established and whose endpoint has sent the first bytes."""
    agent = harness.agent()
    caller = harness.connect_caller()
    caller.port.stalled = True
    caller.connect()
    harness.accept(agent, 1)
    agent.send(p.Data(1, b"220"))
    return caller


def test_first_bytes_are_held_until_the_caller_has_read_the_200() -> None:
    """For a second at most, as long as the kernel reports unread bytes."""
    with ServerHarness() as harness:
        caller = caller_that_does_not_read(harness)
        harness.after(10 * FIRST_BYTES_HOLD_SECONDS)
        assert not caller.port.waiting.endswith(b"220")
        caller.port.stalled = False
        caller.expect_status(200)
        harness.after(FIRST_BYTES_HOLD_SECONDS)
        caller.expect(b"220")


def test_first_bytes_are_released_for_a_caller_that_never_reads() -> None:
    """It may then read them together with the 200."""
    with ServerHarness() as harness:
        caller = caller_that_does_not_read(harness)
        for _ in range(int(FIRST_BYTES_HOLD_SECONDS_MAX / FIRST_BYTES_HOLD_SECONDS) + 2):
            harness.after(FIRST_BYTES_HOLD_SECONDS)
        assert caller.port.waiting.endswith(b"220")


def test_the_first_bytes_of_a_direct_endpoint_are_held_too() -> None:
    """The 200 is read alone."""
    with ServerHarness(strategies=[Strategy.DIRECT]) as harness:
        caller = harness.connect_caller().connect("192.0.2.1:80")
        endpoint = harness.dials.requested.pop().succeed()
        endpoint.handler.on_bytes(memoryview(b"220"))
        endpoint.handler.on_eof(False)
        caller.expect(OK)
        harness.after(FIRST_BYTES_HOLD_SECONDS)
        caller.expect(b"220")
        assert caller.port.state == "finished"


def test_bytes_sent_before_the_200_reach_the_endpoint_first() -> None:
    """They are the beginning of the upload."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_caller().connect().send(b"early ")
        dial = agent.expect_one(p.DialRequest)
        agent.send(p.DialResponse("", 1, dial.random))
        caller.expect(OK).send(b"late")
        assert agent.bytes_of(1) == b"early late"


def test_too_many_early_bytes_pause_the_caller_until_it_is_answered() -> None:
    """Bytes above the bound wait in the caller's socket until the 200."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_caller().connect().send(b"x" * 70_000)
        assert caller.port.paused
        harness.accept(agent, 1)
        assert not caller.port.paused
        caller.expect(OK)
        assert agent.bytes_of(1) == b"x" * 70_000


def test_early_bytes_that_fill_the_send_queue_leave_the_caller_paused() -> None:
    """The answer must not undo the pause for a full send queue, which bounds memory."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_caller().connect().send(b"x" * (BOUNDS.send_queue_high + 1))
        dial = agent.expect_one(p.DialRequest)
        other = harness.connect_route(agent, 2)
        agent.wire.stalled = True
        while harness.stream_of(agent).idle:
            other.send(b"y" * 65536)
        agent.send(p.DialResponse("", 1, dial.random))
        assert caller.port.paused
        agent.wire.stalled = False
        harness.settle()
        agent.bytes_of(2)
        assert agent.bytes_of(1) == b"x" * (BOUNDS.send_queue_high + 1)
        assert not caller.port.paused
        caller.expect(OK)


def test_a_caller_that_never_completes_its_request_is_dropped() -> None:
    """An idle socket does not occupy a frontend for ever."""
    with ServerHarness() as harness:
        caller = harness.connect_caller().send(b"CONNECT 10.0.0.1:80 HT")
        harness.after(HEAD_SECONDS_MAX + 1)
        assert caller.port.state == "closed"
        assert not harness.core.connect_frontends


def test_an_endpoints_error_breaks_the_callers_connection() -> None:
    """CLOSE_RSP with an error resets the caller's socket."""
    with ServerHarness() as harness:
        agent = harness.agent()
        caller = harness.connect_route(agent)
        agent.send(p.CloseResponse("connection reset by peer", 1))
        assert caller.port.state == "aborted"


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x08\x04\x22\xff", b"\x0a"])
def test_an_invalid_packet_ends_only_its_stream(garbage: bytes) -> None:
    """The agent and the other callers are not affected."""
    with ServerHarness() as harness:
        agent = harness.agent()
        neighbour = harness.grpc_route(agent, 1)
        adversary = harness.grpc_route(agent, 2)
        adversary.stream.send(grpc.message_prefix(len(garbage)) + garbage)
        agent.expect(p.CloseRequest(2))
        assert adversary.over
        assert adversary.status == grpc.INTERNAL
        neighbour.send(p.Data(1, b"ok"))
        agent.expect(p.Data(1, b"ok"))


@pytest.mark.parametrize(
    ("prefix", "status"),
    [
        (grpc.message_prefix(grpc.MESSAGE_BYTES_MAX + 1), grpc.RESOURCE_EXHAUSTED),
        (b"\x01" + grpc.message_prefix(8)[1:], grpc.INTERNAL),
    ],
    ids=["too large", "compressed"],
)
@pytest.mark.parametrize("who", ["caller", "agent"])
def test_a_stream_that_the_server_ends_has_an_error_status(prefix: bytes, status: int, who: str) -> None:
    """OK would hide the error."""
    with ServerHarness() as harness:
        agent = harness.agent()
        adversary = agent if who == "agent" else harness.grpc_caller()
        adversary.stream.send(prefix + b"12345678")
        assert adversary.status == status
