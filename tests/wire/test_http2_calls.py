"""Calls between two connections: each action of one side is an event of the other."""

from __future__ import annotations

import pytest

from bootbridge import __version__
from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Stream
from tests.support.wire_peers import (
    REQUEST,
    RESPONSE,
    Caller,
    Echo,
    Recorder,
    Wire,
    kinds,
    split_frames,
    take,
)

KIB = 1024
SIZES = [0, 1, 100, 16 * KIB, 64 * KIB, 1024 * KIB, 4096 * KIB]


def echo(stream: Stream, headers: Headers) -> Echo:
    return Echo().bind(stream)


def message(size: int) -> bytes:
    return bytes(range(256)) * (size // 256) + bytes(range(size % 256))


def half_close(stream: Stream) -> None:
    stream.end()


def answering(wire: Wire) -> tuple[Stream, Recorder, Stream, Recorder]:
    """A call that the server has accepted: the client's and the server's end of it."""
    stream, client = wire.record()
    wire.deliver()
    served = wire.requests[-1]
    assert isinstance(served.handler, Recorder)
    return stream, client, served, served.handler


@pytest.mark.parametrize("piece", [0, 1000, 65536])
@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_any_size_is_echoed_completely(size: int, piece: int) -> None:
    """From nothing up to the largest message, through any size of read."""
    wire = Wire(echo, piece=piece)
    call = wire.call()
    call.send(message(size), b"after")
    call.finish(half_close)
    wire.deliver()
    assert call.messages == [message(size), b"after"]
    assert call.status == (grpc.OK, "")
    assert call.ended


def test_a_call_that_both_sides_ended_leaves_the_tables() -> None:
    wire = Wire(echo)
    for _ in range(300):
        call = wire.call()
        call.send(b"x")
        call.finish(half_close)
        wire.deliver()
    assert wire.client.streams == {}
    assert wire.server.streams == {}


def test_many_calls_share_a_connection_without_mixing() -> None:
    """Each gets its own messages in order."""
    wire = Wire(echo, piece=777)
    calls = [wire.call() for _ in range(20)]
    for number, call in enumerate(calls):
        call.send(*(f"{number}.{turn}".encode() * (number + 1) * 100 for turn in range(10)))
    wire.deliver()
    for number, call in enumerate(calls):
        assert call.messages == [f"{number}.{turn}".encode() * (number + 1) * 100 for turn in range(10)]


def test_the_server_sees_the_request_as_it_was_made() -> None:
    """Pseudo-headers, gRPC's own and metadata, in order, repeated keys included."""
    metadata = (("agentid", "a-1"), ("x", "1"), ("x", "2"), ("authorization", "Bearer " + "t" * 1500))
    wire = Wire()
    stream, _ = wire.record(grpc.request_headers("/AgentService/Connect", "tunnel:8091", metadata))
    wire.deliver()
    served = wire.requests[0]
    assert isinstance(served.handler, Recorder)
    [(headers, end)] = served.handler.all_of("headers")
    assert headers == (
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/AgentService/Connect"),
        (":authority", "tunnel:8091"),
        ("content-type", "application/grpc"),
        ("user-agent", f"bootbridge/{__version__}"),
        ("te", "trailers"),
        *metadata,
    )
    assert end is False
    assert stream.id == served.id == 1


def test_the_client_sees_headers_messages_and_trailers() -> None:
    """In that order, and then the end."""
    wire = Wire()
    stream, client, served, _ = answering(wire)
    served.send_headers(grpc.response_headers((("serverid", "s"),)))
    served.send(grpc.message_prefix(2), b"hi")
    stream.end()
    wire.deliver()
    served.send_headers(grpc.trailers(grpc.UNAVAILABLE, "später"), end=True)
    wire.deliver()
    assert client.names() == ["headers", "data", "headers", "end"]
    assert client.data() == b"\0\0\0\0\2hi"
    assert client.all_of("headers")[0] == ((*RESPONSE, ("serverid", "s")), False)
    trailers, end = client.all_of("headers")[1]
    assert end
    assert grpc.status_of(trailers) == (grpc.UNAVAILABLE, "später")


def test_a_refusal_is_trailers_only() -> None:
    """One HEADERS frame that ends the stream, and NO_ERROR so that the client stops sending."""
    wire = Wire()
    _, client, served, server = answering(wire)
    served.send_headers(grpc.refusal(grpc.UNKNOWN, "no"), end=True)
    out = take(wire.server)
    assert [(kind, flags) for kind, flags, _, _ in split_frames(out)] == [
        (f.HEADERS, f.END_STREAM | f.END_HEADERS),
        (f.RST_STREAM, 0),
    ]
    wire.client.receive(out)
    assert client.names()[:2] == ["headers", "end"]
    assert grpc.status_of(client.all_of("headers")[0][0]) == (grpc.UNKNOWN, "no")
    assert server.names() == ["headers"]
    assert wire.client.streams == wire.server.streams == {}


def test_trailers_after_the_client_ended_need_no_reset() -> None:
    wire = Wire()
    stream, _, served, server = answering(wire)
    stream.end()
    wire.deliver()
    assert server.data() == b""
    assert server.names()[-1] == "end"
    served.send_headers(grpc.refusal(grpc.OK, ""), end=True)
    assert f.RST_STREAM not in kinds(take(wire.server))


def test_trailers_wait_for_the_message_before_them() -> None:
    """A message that the window holds back is sent whole before the end."""
    wire = Wire()
    _, client, served, _ = answering(wire)
    served.send_headers(RESPONSE)
    body = message(3 * 1024 * KIB)
    served.send(grpc.message_prefix(len(body)), body)
    served.send_headers(grpc.trailers(grpc.OK), end=True)
    wire.deliver()
    assert client.data()[5:] == body
    assert client.names()[-2:] == ["headers", "end"] or client.names()[-3:-1] == ["headers", "end"]


def test_a_half_close_waits_for_the_message_before_it() -> None:
    """The same, from the client's side."""
    wire = Wire()
    stream, _, _, server = answering(wire)
    body = message(3 * 1024 * KIB)
    stream.send(grpc.message_prefix(len(body)), body)
    stream.end()
    assert not stream.local_closed
    wire.deliver()
    assert server.data()[5:] == body
    assert server.names()[-1] == "end"
    assert stream.local_closed


def test_the_server_goes_on_sending_after_a_half_close() -> None:
    """Half-close stops one direction only."""
    wire = Wire()
    stream, client, served, _ = answering(wire)
    stream.end()
    wire.deliver()
    served.send_headers(RESPONSE)
    served.send(grpc.message_prefix(4), b"late")
    wire.deliver()
    assert client.data() == b"\0\0\0\0\4late"
    assert "end" not in client.names()


@pytest.mark.parametrize("code", [f.CANCEL, f.NO_ERROR, f.INTERNAL_ERROR])
def test_a_reset_by_the_client_reaches_the_server(code: int) -> None:
    """With its code, once, and nothing is left of the stream."""
    wire = Wire()
    stream, client, _, server = answering(wire)
    stream.reset(code)
    stream.reset(code)
    wire.deliver()
    [(seen, reason)] = server.all_of("reset")
    assert seen == code
    assert f.ERROR_NAMES[code] in reason
    assert client.names() == []
    assert wire.client.streams == wire.server.streams == {}


def test_a_reset_by_the_server_reaches_the_client() -> None:
    wire = Wire()
    _, client, served, _ = answering(wire)
    served.reset(f.INTERNAL_ERROR)
    wire.deliver()
    assert [event[0] for event in client.all_of("reset")] == [f.INTERNAL_ERROR]
    assert wire.client.streams == wire.server.streams == {}


def test_frames_in_flight_to_a_reset_stream_are_dropped() -> None:
    """The peer may have sent it before it received the reset."""
    wire = Wire()
    stream, client, served, _ = answering(wire)
    served.send_headers(RESPONSE)
    served.send(grpc.message_prefix(5), b"stale")
    served.send_headers(grpc.trailers(grpc.OK), end=True)
    stream.reset(f.CANCEL)
    wire.deliver()
    assert client.names() == []
    assert wire.client.error is None
    other = wire.call()
    wire.deliver()
    assert other.reset is None


def test_a_reset_drops_the_message_that_waits() -> None:
    """Nothing of a reset stream is sent any more, trailers neither."""
    wire = Wire()
    _, _, served, _ = answering(wire)
    served.send_headers(RESPONSE)
    served.send(grpc.message_prefix(3 * 1024 * KIB), bytes(3 * 1024 * KIB))
    served.send_headers(grpc.trailers(grpc.OK), end=True)
    served.reset(f.CANCEL)
    wire.server.receive(f.window_update(0, 1 << 20))
    assert kinds(take(wire.server))[-1] == f.RST_STREAM
    wire.deliver()
    assert take(wire.server) == b""


def test_a_handler_may_reset_its_stream_from_within() -> None:
    """In the middle of a frame, with more frames behind it in the same read."""

    class Impatient(Caller):
        def on_message(self, message: bytes) -> None:
            assert self.stream is not None
            self.stream.reset(f.CANCEL)

    wire = Wire(echo)
    call = wire.call(Impatient())
    call.send(b"1", b"2", b"3")
    wire.deliver()
    assert call.messages[:1] == [b"1"]
    assert wire.client.error is None
    assert wire.server.error is None
    assert wire.client.streams == wire.server.streams == {}


def test_a_lost_connection_resets_every_call() -> None:
    """Each handler learns the reason, once; later input is ignored."""
    wire = Wire()
    ends = [wire.record() for _ in range(3)]
    wire.deliver()
    wire.client.lost("the cable was cut")
    wire.client.lost("again")
    for _, recorder in ends:
        assert recorder.all_of("reset") == [(f.CANCEL, "the cable was cut")]
    wire.client.receive(b"later input")
    assert wire.client.closed
    assert wire.client.error is None


def test_an_interim_response_is_passed_over() -> None:
    """A 1xx comes before the response and is not it."""
    wire = Wire()
    _, client, served, _ = answering(wire)
    served.send_headers(((":status", "103"), ("link", "x")))
    served.send_headers(RESPONSE)
    wire.deliver()
    assert client.all_of("headers") == [(RESPONSE, False)]


def test_a_connection_starts_with_preface_settings_and_window() -> None:
    """What a peer reads first, either role."""
    wire = Wire()
    client, server = take(wire.client), take(wire.server)
    assert client.startswith(f.PREFACE)
    assert kinds(client) == kinds(server) == [f.SETTINGS, f.WINDOW_UPDATE]


def test_requests_may_be_sent_with_the_preface() -> None:
    """A client need not wait for the server's SETTINGS."""
    wire = Wire(echo)
    call = wire.call(headers=REQUEST)
    call.send(b"early")
    assert f.DATA in kinds(b"".join(wire.client.out))
    wire.deliver()
    assert call.messages == [b"early"]
