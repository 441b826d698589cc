"""Windows and back-pressure: a slow reader stops its own sender only."""

from __future__ import annotations

import pytest

from bootbridge.bounds import BOUNDS
from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.frame_reader import FRAME_BYTES_MAX
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import CONNECTION_WINDOW, Http2Connection, Stream
from tests.support.wire_peers import RESPONSE, Caller, Echo, Recorder, Wire, split_frames, take

KIB = 1024
CHUNK = bytes(32 * KIB)


class Slow(Caller):
    """A server's handler that reads nothing until it is resumed."""

    def on_headers(self, headers: Headers, end: bool) -> None:
        super().on_headers(headers, end)
        assert self.stream is not None
        self.stream.pause_reading()


class Server:
    """Returns a Slow handler for the paths of slow calls, an Echo for the others."""

    def __init__(self) -> None:
        self.slow: list[Slow] = []

    def __call__(self, stream: Stream, headers: Headers) -> Caller:
        if dict(headers)[":path"] == "/slow":
            self.slow.append(Slow().bind(stream))
            return self.slow[-1]
        return Echo().bind(stream)


def slow_call(wire: Wire) -> Caller:
    return wire.call(headers=grpc.request_headers("/slow", "tunnel"))


def test_a_paused_stream_stops_its_sender_within_one_window() -> None:
    """The reader holds at most its window, however much the sender has."""
    server = Server()
    wire = Wire(server)
    call = slow_call(wire)
    call.send(*[CHUNK] * 200)
    wire.deliver()
    held = len(server.slow[0].messages) * len(CHUNK)
    assert 0 < held <= wire.server.stream_window
    assert call.waiting > 100
    assert call.stream is not None
    assert not call.stream.ready


def test_a_resumed_stream_gets_everything() -> None:
    """Nothing is lost or doubled by a pause."""
    server = Server()
    wire = Wire(server)
    call = slow_call(wire)
    sent = [bytes([number % 256]) * 10_000 for number in range(400)]
    call.send(*sent)
    wire.deliver()
    slow = server.slow[0]
    assert len(slow.messages) < 400
    assert slow.stream is not None
    for _ in range(50):
        slow.stream.resume_reading()
        wire.deliver_once()
        slow.stream.pause_reading()
        wire.deliver()
    slow.stream.resume_reading()
    wire.deliver()
    assert slow.messages == sent


def test_a_paused_stream_does_not_delay_others() -> None:
    """Beside a sender that was stopped, a thousand calls go through."""
    server = Server()
    wire = Wire(server)
    stopped = [slow_call(wire) for _ in range(5)]
    for call in stopped:
        call.send(*[CHUNK] * 100)
    wire.deliver()
    for number in range(100):
        call = wire.call()
        call.send(b"%d" % number * 5000)
        call.finish(lambda stream: stream.end())
        wire.deliver()
        assert call.messages == [b"%d" % number * 5000]
    assert all(call.waiting for call in stopped)


def test_pausing_before_anything_arrives_holds_exactly_the_window() -> None:
    """The window we offered is used to the last byte and not a byte further."""
    wire = Wire()
    stream, _ = wire.record()
    wire.deliver()
    served = wire.requests[0]
    served.pause_reading()
    stream.send(bytes(wire.server.stream_window + 1))
    wire.deliver()
    assert isinstance(served.handler, Recorder)
    assert len(served.handler.data()) == wire.server.stream_window
    assert served.receive_window == 0
    assert wire.server.error is None


def test_resuming_a_stream_that_was_not_paused_sends_nothing() -> None:
    """No window is given twice."""
    wire = Wire()
    _, _ = wire.record()
    wire.deliver()
    wire.requests[0].resume_reading()
    assert take(wire.server) == b""


def test_a_peer_that_overruns_its_window_is_cut_off() -> None:
    """FLOW_CONTROL_ERROR, whichever kind of DATA frame did it."""
    for flags in (0, f.END_STREAM, f.PADDED):
        wire = Wire()
        wire.record()
        wire.deliver()
        wire.requests[0].pause_reading()
        for _ in range(2):
            wire.server.receive(f.frame(f.DATA, flags, 1, bytes(FRAME_BYTES_MAX)))
        assert wire.server.closed
        assert wire.server.error is not None
        assert wire.server.error.code in (f.FLOW_CONTROL_ERROR, f.STREAM_CLOSED)
        if not flags & f.END_STREAM:
            assert wire.server.error.code == f.FLOW_CONTROL_ERROR
            break


def test_a_smaller_window_by_settings_stops_the_sender() -> None:
    """SETTINGS apply to open streams; the window may become negative, and then recovers."""
    wire = Wire()
    stream, _ = wire.record()
    wire.deliver()
    stream.send(bytes(1000))
    before = stream.window
    wire.client.receive(f.settings({f.INITIAL_WINDOW_SIZE: 0}))
    assert stream.window == before - wire.server.stream_window < 0
    assert not stream.ready
    stream.send(b"waits")
    take(wire.client)
    wire.client.receive(f.window_update(1, 1000))
    assert take(wire.client) == b""
    wire.client.receive(f.settings({f.INITIAL_WINDOW_SIZE: 5}))
    assert split_frames(take(wire.client))[-1] == (f.DATA, 0, 1, b"waits")


def test_settings_that_overflow_a_window_are_refused() -> None:
    """A window that was raised by hand cannot be raised beyond 2^31-1 by SETTINGS."""
    wire = Wire()
    wire.record()
    wire.deliver()
    wire.client.receive(f.window_update(1, 2**30))
    wire.client.receive(f.settings({f.INITIAL_WINDOW_SIZE: f.WINDOW_LIMIT}))
    assert wire.client.error is not None
    assert wire.client.error.code == f.FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    ("offered", "largest"), [(16384, 16384), (65536, 65536), (2**24 - 1, FRAME_BYTES_MAX)]
)
def test_no_frame_is_larger_than_the_peer_allows(offered: int, largest: int) -> None:
    """Nor larger than our own limit."""
    connection = Http2Connection(client=True)
    recorder = connection.open_stream(RESPONSE, lambda stream: Recorder(stream=stream))
    take(connection)
    connection.receive(
        f.settings({f.MAX_FRAME_SIZE: offered, f.INITIAL_WINDOW_SIZE: 2**24}) + f.window_update(0, 2**24)
    )
    take(connection)
    assert recorder.stream is not None
    recorder.stream.send(bytes(3 * 1024 * KIB))
    sizes = [len(payload) for kind, _, _, payload in split_frames(take(connection)) if kind == f.DATA]
    assert max(sizes) == largest
    assert sum(sizes) == 3 * 1024 * KIB


def test_frame_size_changes_in_mid_message() -> None:
    """The rest of a message that waits is split by the newest SETTINGS."""
    wire = Wire()
    stream, _ = wire.record()
    stream.send(bytes(100_000))
    take(wire.client)
    wire.client.receive(f.settings({f.MAX_FRAME_SIZE: 20_000, f.INITIAL_WINDOW_SIZE: 200_000}))
    wire.client.receive(f.window_update(0, 200_000))
    sizes = [len(payload) for kind, _, _, payload in split_frames(take(wire.client)) if kind == f.DATA]
    assert sizes == [20_000, 100_000 - 65_535 - 20_000]


def test_the_connection_window_is_respected_and_returned() -> None:
    """More than a whole connection window crosses one connection."""
    wire = Wire()
    stream, _ = wire.record()
    wire.deliver()
    handler = wire.requests[0].handler
    assert isinstance(handler, Recorder)
    chunk = bytes(1024 * KIB)
    total = 0
    while total <= CONNECTION_WINDOW + len(chunk):
        stream.send(chunk)
        wire.deliver()
        handler.events.clear()
        total += len(chunk)
    assert stream.connection.window > CONNECTION_WINDOW // 4
    assert wire.server.error is None


def test_the_connection_window_stops_all_streams_and_wakes_them() -> None:
    """Without connection window no stream sends; when it returns, all do."""
    connection = Http2Connection(client=True)
    calls = [connection.open_stream(RESPONSE, Caller().bind) for _ in range(3)]
    take(connection)
    connection.receive(f.settings({f.INITIAL_WINDOW_SIZE: 2**20}))
    for call in calls:
        call.send(bytes(40_000), b"more")
    data = [frame for frame in split_frames(take(connection)) if frame[0] == f.DATA]
    assert sum(len(payload) for *_, payload in data) == f.DEFAULT_WINDOW
    connection.receive(f.window_update(0, 2**20))
    data += [frame for frame in split_frames(take(connection)) if frame[0] == f.DATA]
    for call in calls:
        assert call.stream is not None
        mine = b"".join(payload for _, _, stream_id, payload in data if stream_id == call.stream.id)
        assert mine == grpc.message_prefix(40_000) + bytes(40_000) + grpc.message_prefix(4) + b"more"


def test_output_that_is_not_taken_stops_the_senders() -> None:
    """``ready`` turns False at the bound, so that a slow socket holds back what feeds it."""
    wire = Wire()
    calls = [wire.call() for _ in range(4)]
    wire.deliver()
    for call in calls:
        call.send(*[CHUNK] * 100)
    assert wire.client.out_size < BOUNDS.http2_output + 2 * len(CHUNK)
    assert all(call.waiting for call in calls)
    wire.deliver()
    assert not any(call.waiting for call in calls)


def test_a_socket_that_is_not_writable_stops_the_senders() -> None:
    """Between flushed(False) and flushed(True) nothing new starts."""
    wire = Wire()
    call = wire.call()
    wire.deliver()
    take(wire.client, writable=False)
    call.send(b"waits")
    assert call.waiting == 1
    assert take(wire.client, writable=False) == b""
    wire.client.flushed(True)
    assert call.waiting == 0
    assert split_frames(take(wire.client))[0][3] == b"\0\0\0\0\5waits"


def test_window_updates_while_not_writable_are_used_later() -> None:
    """A wake-up while the socket was blocked is not lost."""
    wire = Wire()
    call = wire.call()
    call.send(bytes(100_000))
    take(wire.client, writable=False)
    wire.client.receive(f.settings({}) + f.window_update(1, 2**20) + f.window_update(0, 2**20))
    out = take(wire.client, writable=False)
    assert f.DATA not in [kind for kind, *_ in split_frames(out)]
    wire.client.flushed(True)
    sizes = [len(payload) for kind, _, _, payload in split_frames(take(wire.client)) if kind == f.DATA]
    assert sum(sizes) == 5 + 100_000 - f.DEFAULT_WINDOW


def test_busy_streams_take_turns() -> None:
    """A stream that always has more to send does not starve those opened after it."""
    wire = Wire()
    calls = [wire.call() for _ in range(8)]
    wire.deliver()
    for call in calls:
        call.send(*[CHUNK] * 1000)
    for _ in range(40):
        wire.deliver_once()
    shares = [call.sent for call in calls]
    assert min(shares) > 0
    assert max(shares) <= 2 * min(shares)


def test_a_stream_holds_at_most_one_unsent_message() -> None:
    """Sending more raises: it is a defect of the caller."""
    wire = Wire()
    stream, _ = wire.record()
    stream.send(bytes(100_000))
    with pytest.raises(AssertionError, match="ask ready first"):
        stream.send(b"x")
