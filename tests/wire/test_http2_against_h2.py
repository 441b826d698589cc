"""h2, an independent implementation that checks what it is sent, as the other end of our connections."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Http2Connection, Stream
from tests.support.wire_h2 import H2Peer, converse, frame_by_frame
from tests.support.wire_peers import REQUEST, RESPONSE, Caller, Echo, take

KIB = 1024
messages = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([16 * KIB - 5, 16 * KIB, 64 * KIB, 100_000, 300_000]).map(
            lambda n: bytes([n % 251]) * n
        ),
    ),
    max_size=5,
)
calls = st.lists(messages, min_size=1, max_size=4)
piece_sizes = st.lists(st.sampled_from([0, 700, 16384, 65536]), min_size=1, max_size=4)


def framed(sent: list[bytes]) -> bytes:
    return b"".join(grpc.message_prefix(len(message)) + message for message in sent)


def echo_server() -> Http2Connection:
    return Http2Connection(client=False, on_request=lambda stream, headers: Echo().bind(stream))


@settings(max_examples=30, deadline=None)
@given(calls, piece_sizes)
def test_an_h2_client_gets_its_messages_back(calls: list[list[bytes]], sizes: list[int]) -> None:
    """All of them, in order, on every stream, with headers, trailers and the end."""
    connection, peer = echo_server(), H2Peer(client=True)
    streams = [peer.request(REQUEST) for _ in calls]
    for stream_id, sent in zip(streams, calls, strict=True):
        for message in sent:
            peer.send(stream_id, framed([message]))
        peer.end(stream_id)
    converse(connection, peer, sizes)
    for stream_id, sent in zip(streams, calls, strict=True):
        assert peer.received[stream_id] == framed(sent)
        assert peer.headers[stream_id] == list(RESPONSE)
        assert peer.trailers[stream_id] == [("grpc-status", "0")]
        assert stream_id in peer.ended
    assert connection.streams == {}
    assert connection.error is None


@settings(max_examples=30, deadline=None)
@given(calls, piece_sizes)
def test_our_client_gets_its_messages_back_from_an_h2_server(
    calls: list[list[bytes]], sizes: list[int]
) -> None:
    """h2 raises an error for any misplaced frame and any window overrun."""
    connection, peer = Http2Connection(client=True), H2Peer(client=False)
    peer.echo = True
    callers = [connection.open_stream(REQUEST, Caller().bind) for _ in calls]
    for caller, sent in zip(callers, calls, strict=True):
        caller.send(*sent)
        caller.finish(lambda stream: stream.end())
    converse(connection, peer, sizes)
    for caller, sent in zip(callers, calls, strict=True):
        assert caller.messages == sent
        assert caller.status == (grpc.OK, "")
        assert caller.ended
    assert connection.streams == {}
    assert connection.error is None


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 200_000),
    st.lists(st.tuples(st.integers(1, 300_000), st.integers(16384, 100_000)), max_size=5),
)
def test_h2_may_change_its_settings_in_mid_flight(first: int, changes: list[tuple[int, int]]) -> None:
    """Windows shrink, grow and become negative; frame sizes change; every byte arrives."""
    connection, peer = Http2Connection(client=True), H2Peer(client=False)
    peer.echo = True
    sent = [bytes([number]) * 150_000 for number in range(3)]
    peer.connection.update_settings({4: first})
    converse(connection, peer)
    caller = connection.open_stream(REQUEST, Caller().bind)
    caller.send(*sent)
    for window, frame_size in changes:
        for frame in frame_by_frame(take(connection)):
            peer.receive(frame)
        peer.connection.update_settings({4: window, 5: frame_size})
        connection.receive(peer.output())
    # h2 itself may wait for ever after a window shrinks, so the last change makes it larger.
    peer.connection.update_settings({4: 2**20})
    converse(connection, peer)
    assert caller.messages == sent
    assert connection.error is None


def test_an_h2_client_sees_a_refusal() -> None:
    """Trailers-only, then NO_ERROR."""

    def refuse(stream: Stream, headers: Headers) -> Caller:
        stream.send_headers(grpc.refusal(grpc.UNKNOWN, "nö"), end=True)
        return Caller().bind(stream)

    connection, peer = Http2Connection(client=False, on_request=refuse), H2Peer(client=True)
    stream_id = peer.request(REQUEST)
    converse(connection, peer)
    assert grpc.status_of(peer.headers[stream_id]) == (grpc.UNKNOWN, "nö")
    assert peer.resets == {stream_id: f.NO_ERROR}


def test_an_h2_client_is_answered_its_pings() -> None:
    """And ours are answered by it."""
    connection, peer = echo_server(), H2Peer(client=True)
    pongs: list[int] = []
    connection.on_pong = lambda: pongs.append(1)
    peer.connection.ping(b"12345678")
    connection.ping()
    converse(connection, peer)
    assert (peer.pongs, pongs) == (1, [1])


def test_an_h2_client_may_reset_a_stream_and_open_another() -> None:
    """A stream that it cancels does not disturb the next."""
    connection, peer = echo_server(), H2Peer(client=True)
    first = peer.request(REQUEST)
    peer.send(first, framed([bytes(50_000)]))
    converse(connection, peer)
    peer.connection.reset_stream(first, error_code=f.CANCEL)
    second = peer.request(REQUEST)
    peer.send(second, framed([b"again"]))
    converse(connection, peer)
    assert peer.received[second] == framed([b"again"])
    assert list(connection.streams) == [second]


def test_an_h2_client_receives_goaway() -> None:
    connection, peer = echo_server(), H2Peer(client=True)
    converse(connection, peer)
    connection.go_away(f.NO_ERROR, "bye")
    converse(connection, peer)
    assert peer.terminated == f.NO_ERROR


def test_large_headers_cross_in_continuations() -> None:
    """Both ways, compressed by h2 and uncompressed by us."""
    token = "".join(chr(33 + number % 90) for number in range(40_000))
    connection, peer = echo_server(), H2Peer(client=True)
    seen: list[Headers] = []
    connection._on_request = lambda stream, headers: seen.append(headers) or Echo().bind(stream)  # type: ignore[func-returns-value]
    peer.request((*REQUEST, ("x-token", token)))
    converse(connection, peer)
    assert dict(seen[0])["x-token"] == token
    ours, server = Http2Connection(client=True), H2Peer(client=False)
    server.echo = True
    ours.open_stream((*REQUEST, ("x-token", token)), Caller().bind)
    converse(ours, server)
    assert dict(server.headers[1])["x-token"] == token
