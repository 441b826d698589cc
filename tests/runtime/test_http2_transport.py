"""A connection on a byte stream: what ends it, on a clock that only the test moves."""

from __future__ import annotations

import pytest

from bootbridge.runtime.http2_transport import READ_BYTES_MIN, TURN_SECONDS_MAX, Http2Transport
from bootbridge.runtime.pump import READ_BYTES
from bootbridge.tunnel.refused_call import RefusedCall
from bootbridge.wire import grpc_messages as grpc
from tests.support.sim_environment import Environment, SimPump
from tests.support.sim_network import Network, SimPort

SILENCE = 30.0
REFUSAL = grpc.refusal(grpc.UNIMPLEMENTED, "nothing is served here")


class Meeting:
    """A server's connection that expects an admitted stream within SILENCE, and the peer's."""

    def __init__(self) -> None:
        self.env = Environment(1)
        network = Network(self.env)
        pump, peer_pump = SimPump(self.env), SimPump(self.env)
        near, far = network.join(pump, peer_pump, "connection")
        self.port: SimPort = near
        self.server = Http2Transport(
            near,
            on_request=lambda stream, headers: RefusedCall(stream, REFUSAL),
            keepalive_seconds=3600,
            unadmitted_seconds=SILENCE,
        )
        self.peer = Http2Transport(far, client=True, keepalive_seconds=3600)
        self._peer_pump = peer_pump
        for each in (pump, peer_pump):
            each.end_turn()

    def open_a_stream(self) -> None:
        headers = grpc.request_headers("/any", "x")
        self.peer.http2.open_stream(headers, lambda stream: RefusedCall(stream, REFUSAL))
        self._peer_pump.end_turn()

    def after(self, seconds: float) -> None:
        self.env.run_until(lambda: False, self.env.now + seconds)


def test_a_peer_that_never_opens_a_stream_is_let_go() -> None:
    """The peer gets a GOAWAY, and the connection is closed."""
    meeting = Meeting()
    meeting.after(SILENCE - 1)
    assert not meeting.port.closed
    meeting.after(10)
    assert meeting.port.closed
    assert meeting.peer.http2.peer_going_away


def test_a_peer_whose_calls_are_all_refused_is_let_go() -> None:
    """Each of them gets its answer; none of them extends the deadline."""
    meeting = Meeting()
    for _ in range(3):
        meeting.open_a_stream()
        meeting.after(SILENCE / 4)
    assert not meeting.port.closed
    meeting.after(SILENCE / 4 + 10)
    assert meeting.port.closed


def test_a_peer_with_an_admitted_stream_may_be_silent() -> None:
    """Agents send nothing without dials."""
    meeting = Meeting()
    meeting.open_a_stream()
    meeting.server.http2.count_admitted(1)
    meeting.after(10 * SILENCE)
    assert not meeting.port.closed


def test_a_peer_whose_admitted_stream_has_ended_must_open_another() -> None:
    """The deadline starts anew, and the next admitted stream stops it."""
    meeting = Meeting()
    for _ in range(3):
        meeting.server.http2.count_admitted(1)
        meeting.after(2 * SILENCE)
        meeting.server.http2.count_admitted(-1)
        meeting.after(SILENCE - 1)
        assert not meeting.port.closed
    meeting.after(10)
    assert meeting.port.closed


def take(meeting: Meeting, size: int, seconds: float) -> int:
    """Lets the server take ``size`` bytes, which takes it ``seconds``; returns how much it reads next."""
    times = iter((0.0, seconds))
    clock = meeting.port.pump.clock
    real_time, clock.real_time = clock.real_time, lambda: next(times)
    meeting.server.on_bytes(memoryview(bytes(size)))
    clock.real_time = real_time
    return meeting.port.read_max


@pytest.mark.parametrize(
    ("turns", "expected"),
    [(0.0, READ_BYTES), (0.25, READ_BYTES), (0.9, READ_BYTES), (1.1, READ_BYTES_MIN), (25.0, READ_BYTES_MIN)],
)
def test_of_a_peer_whose_bytes_take_long_less_is_read_at_a_time(turns: float, expected: int) -> None:
    """Thousands of the smallest frames fit into one read, and all other connections wait for it."""
    assert take(Meeting(), READ_BYTES, turns * TURN_SECONDS_MAX) == expected


def test_a_peer_that_sends_bulk_data_again_is_read_in_whole_buffers_again() -> None:
    meeting = Meeting()
    assert take(meeting, READ_BYTES, 1.0) == READ_BYTES_MIN
    assert take(meeting, READ_BYTES_MIN - 500, TURN_SECONDS_MAX / 100) == READ_BYTES
