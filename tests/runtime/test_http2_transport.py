"""A connection on a byte stream: what ends it, on a clock that only the test moves."""

from __future__ import annotations

from bootbridge.runtime.http2_transport import Http2Transport
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
