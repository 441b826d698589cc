"""Pings, settings, limits, and peers that violate the protocol."""

from __future__ import annotations

from collections.abc import Sequence

import hpack
import pytest

from bootbridge.wire import frames as f
from bootbridge.wire.closed_streams import CLOSED_REMEMBERED
from bootbridge.wire.frame_reader import FRAME_BYTES_MAX
from bootbridge.wire.hpack_headers import HEADER_LIST_BYTES_MAX
from bootbridge.wire.http2_budgets import NAMES, FrameBudget
from bootbridge.wire.http2_connection import (
    DEFERRED_FRAMES_MAX,
    REPLIES_WAITING_MAX,
    Http2Connection,
)
from tests.support.wire_peers import (
    REQUEST,
    RESPONSE,
    Caller,
    Recorder,
    Wire,
    kinds,
    split_frames,
    take,
)

END = f.END_STREAM | f.END_HEADERS


def block(*headers: tuple[str, str]) -> bytes:
    return hpack.Encoder().encode(list(headers))


UNLIMITED = tuple(FrameBudget(1 << 40) for _ in NAMES)  # for tests of other bounds


def request(stream_id: int, flags: int = f.END_HEADERS, *more: tuple[str, str]) -> bytes:
    return f.frame(f.HEADERS, flags, stream_id, block(*REQUEST, *more))


def server(budgets: Sequence[FrameBudget] = ()) -> tuple[Http2Connection, list[Recorder]]:
    """A server connection behind its first SETTINGS, and the handlers of its requests."""
    handlers: list[Recorder] = []

    def on_request(stream: object, headers: object) -> Recorder:
        handlers.append(Recorder())
        return handlers[-1]

    connection = Http2Connection(client=False, on_request=on_request, streams_max=10, budgets=budgets)
    connection.receive(f.PREFACE + f.settings({}))
    take(connection)
    return connection, handlers


def client() -> tuple[Http2Connection, Recorder]:
    """A client connection behind its first SETTINGS that has one request open."""
    connection = Http2Connection(client=True)
    recorder = connection.open_stream(REQUEST, lambda stream: Recorder(stream=stream))
    connection.receive(f.settings({}))
    take(connection)
    return connection, recorder


def goaway_of(connection: Http2Connection) -> tuple[int, int, bytes]:
    """(last stream id, code, text) of the GOAWAY that a failed connection leaves behind."""
    kind, _, stream_id, payload = split_frames(take(connection))[-1]
    assert (kind, stream_id) == (f.GOAWAY, 0)
    return int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big"), payload[8:]


def test_the_answer_to_a_ping_is_sent_with_the_next_output() -> None:
    """Go peers ping behind nearly every message: an answer of its own would cost as much as the message."""
    calls: list[str] = []
    connection = Http2Connection(
        client=True,
        on_output=lambda: calls.append("touched"),
        on_deferred_output=lambda: calls.append("resting"),
    )
    connection.receive(f.settings({}))
    take(connection)
    calls.clear()
    connection.receive(f.frame(f.PING, 0, 0, b"12345678"))
    assert calls == ["resting"]
    connection.open_stream(REQUEST, lambda stream: Recorder(stream=stream))
    assert calls == ["resting", "touched"]
    assert kinds(take(connection)) == [f.PING, f.HEADERS]


def test_many_ping_answers_are_sent_without_other_output() -> None:
    calls: list[str] = []
    connection = Http2Connection(client=True, on_output=lambda: calls.append("touched"))
    connection.receive(f.settings({}))
    take(connection)
    calls.clear()
    connection.receive(f.frame(f.PING, 0, 0, b"12345678") * (DEFERRED_FRAMES_MAX - 1))
    assert calls == []
    connection.receive(f.frame(f.PING, 0, 0, b"12345678"))
    assert calls == ["touched"]


# --- pings


def test_a_ping_is_answered_with_its_own_content() -> None:
    """Promptly, with ACK: Go's bandwidth estimator depends on it."""
    connection, _ = server()
    connection.receive(f.frame(f.PING, 0, 0, b"\x02\x04\x10\x10\x09\x0e\x07\x07"))
    assert take(connection) == f.frame(f.PING, f.ACK, 0, b"\x02\x04\x10\x10\x09\x0e\x07\x07")


def test_a_ping_ack_is_reported_to_the_owner() -> None:
    """In both directions; any received frame counts as activity."""
    wire = Wire()
    wire.deliver()
    pongs: list[str] = []
    wire.client.on_pong = lambda: pongs.append("client")
    wire.server.on_pong = lambda: pongs.append("server")
    before = wire.client.reads_seen
    wire.client.ping()
    wire.server.ping()
    wire.deliver()
    assert sorted(pongs) == ["client", "server"]
    assert wire.client.reads_seen > before


# --- going away


def test_after_goaway_open_calls_go_on_and_new_ones_are_refused() -> None:
    """A graceful stop: what was accepted is finished."""
    wire = Wire(streams_max=5)
    received: list[tuple[int, str]] = []
    wire.client.on_goaway = lambda code, text: received.append((code, text))
    stream, recorder = wire.record()
    wire.deliver()
    wire.server.go_away(f.NO_ERROR, "draining")
    wire.server.go_away(f.NO_ERROR, "draining")
    wire.deliver()
    assert received == [(f.NO_ERROR, "draining")]
    assert wire.client.peer_going_away
    _, late = wire.record()
    wire.deliver()
    assert [code for code, _ in late.all_of("reset")] == [f.REFUSED_STREAM]
    wire.requests[0].send_headers(RESPONSE)
    stream.send(b"on")
    wire.deliver()
    assert recorder.names() == ["headers"]
    assert isinstance(wire.requests[0].handler, Recorder)
    assert wire.requests[0].handler.data() == b"on"


def test_goaway_refuses_the_calls_that_the_peer_never_saw() -> None:
    """Those above its last id may be made again elsewhere; those below go on."""
    connection, first = client()
    second = connection.open_stream(REQUEST, lambda stream: Recorder(stream=stream))
    connection.receive(f.goaway(1, f.NO_ERROR))
    assert first.names() == []
    assert [code for code, _ in second.all_of("reset")] == [f.REFUSED_STREAM]
    assert list(connection.streams) == [1]


# --- limits


def test_streams_above_the_limit_are_refused_one_by_one() -> None:
    """REFUSED_STREAM for the eleventh; the other ten are not affected."""
    wire = Wire(streams_max=10)
    calls = [wire.record() for _ in range(12)]
    wire.deliver()
    assert [len(recorder.all_of("reset")) for _, recorder in calls] == [0] * 10 + [1, 1]
    assert calls[10][1].all_of("reset")[0][0] == f.REFUSED_STREAM
    calls[0][0].reset(f.CANCEL)
    _, again = wire.record()
    wire.deliver()
    assert again.all_of("reset") == []


def test_a_refused_stream_still_feeds_the_header_tables() -> None:
    """HPACK's state belongs to the connection: a refused request's fields may be referred to later."""
    connection, handlers = server()
    encoder = hpack.Encoder()
    for number in range(12):
        headers = [*REQUEST, ("x-long-name", "value")]
        connection.receive(f.frame(f.HEADERS, f.END_HEADERS, 2 * number + 1, encoder.encode(headers)))
    connection.receive(f.rst_stream(1, f.CANCEL))
    connection.receive(
        f.frame(f.HEADERS, f.END_HEADERS, 31, encoder.encode([*REQUEST, ("x-long-name", "value")]))
    )
    assert handlers[-1].all_of("headers")[0][0][-1] == ("x-long-name", "value")
    assert connection.error is None


@pytest.mark.parametrize("piece", [1, 100, 16384])
def test_a_header_block_may_come_in_continuations(piece: int) -> None:
    """In as many frames as its budget permits, within the limit."""
    connection, handlers = server(UNLIMITED)
    whole = block(*REQUEST, ("x", "y" * 1000))
    parts = [whole[at : at + piece] for at in range(0, len(whole), piece)]
    connection.receive(f.frame(f.HEADERS, 0, 1, parts[0]))
    for part in parts[1:]:
        connection.receive(f.frame(f.CONTINUATION, 0, 1, part))
    connection.receive(f.frame(f.CONTINUATION, f.END_HEADERS, 1))
    assert handlers[0].all_of("headers")[0][0][-1] == ("x", "y" * 1000)


def test_our_own_large_headers_are_continued() -> None:
    """No HEADERS frame of ours is larger than the peer allows."""
    wire = Wire()
    wire.record((*REQUEST, ("x-token", "t" * 50_000)))
    sizes = [(kind, len(payload)) for kind, _, _, payload in split_frames(take(wire.client))[2:]]
    assert [kind for kind, _ in sizes][:2] == [f.HEADERS, f.CONTINUATION]
    assert max(size for _, size in sizes) <= f.DEFAULT_FRAME_MAX


def test_a_large_header_list_crosses_two_connections() -> None:
    """Up to the limit that we announce."""
    wire = Wire()
    wire.record((*REQUEST, ("x-token", "t" * 60_000)))
    wire.deliver()
    assert wire.server.error is None
    handler = wire.requests[0].handler
    assert isinstance(handler, Recorder)
    assert handler.all_of("headers")[0][0][-1] == ("x-token", "t" * 60_000)


FLOODS = {
    "one list that is too long": [request(1, f.END_HEADERS, ("x", "y" * HEADER_LIST_BYTES_MAX))],
    "one block that is too long": [f.frame(f.HEADERS, f.END_HEADERS, 1, b"\x20" * FRAME_BYTES_MAX)],
    "an open block that is too long": [f.frame(f.HEADERS, 0, 1, bytes(HEADER_LIST_BYTES_MAX + 1))],
    "continuations without end": [
        request(1, 0),
        *[f.frame(f.CONTINUATION, 0, 1, bytes(1000))] * 100,
    ],
    "empty continuations without end": [request(1, 0), *[f.frame(f.CONTINUATION, 0, 1)] * 10_000],
    "an inflated list": [
        f.frame(f.HEADERS, f.END_HEADERS, 1, b"\x40\x01x\x7f\x81\x1e" + b"y" * 4000 + b"\xbe" * 4000)
    ],
}


@pytest.mark.parametrize("name", FLOODS)
def test_headers_without_bound_are_refused(name: str) -> None:
    """ENHANCE_YOUR_CALM, before much of it is held."""
    connection, handlers = server()
    for data in FLOODS[name]:
        connection.receive(data)
    assert connection.error is not None
    assert f.ERROR_NAMES[connection.error.code] == "ENHANCE_YOUR_CALM"
    assert handlers == []
    assert goaway_of(connection)[1] == f.ENHANCE_YOUR_CALM


QUESTIONS = {
    "ping": f.frame(f.PING, 0, 0, bytes(8)),
    "settings": f.settings({}),
    "refused": b"",
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_peer_that_provokes_replies_without_reading_gets_enhance_your_calm(name: str) -> None:
    """Unread replies are bounded, apart from the budgets of the frames that provoke them."""
    connection, _ = server(UNLIMITED)
    connection.receive(b"".join(request(2 * number + 1) for number in range(10)))

    def question(number: int) -> bytes:
        return QUESTIONS[name] or request(2 * number + 101)

    for number in range(2 * REPLIES_WAITING_MAX):
        connection.receive(question(number))
        take(connection)
    assert connection.error is None
    take(connection, writable=False)
    for number in range(REPLIES_WAITING_MAX + 1):
        connection.receive(question(2 * REPLIES_WAITING_MAX + number))
    assert connection.error is not None
    assert connection.error.code == f.ENHANCE_YOUR_CALM
    assert connection.out_size < 100 * REPLIES_WAITING_MAX


def test_read_replies_no_longer_count() -> None:
    """The count starts again after a pause."""
    connection, _ = server(UNLIMITED)
    for _ in range(5):
        take(connection, writable=False)
        for _ in range(REPLIES_WAITING_MAX):
            connection.receive(QUESTIONS["ping"])
        take(connection, writable=True)
    assert connection.error is None


def test_closed_streams_are_forgotten_in_the_end() -> None:
    """However many there were and however they ended, a bounded number is remembered."""
    connection, _ = server(UNLIMITED)
    for number in range(1000):
        connection.receive(request(8 * number + 1) + f.rst_stream(8 * number + 1, f.CANCEL))
        connection.receive(request(8 * number + 3, f.END_HEADERS, ("connection", "close")))
        connection.receive(f.frame(f.PRIORITY, 0, 8 * number + 5, b"bad"))
        take(connection)
    assert connection.error is None
    assert connection.streams == {}
    assert len(connection._closed_streams) <= CLOSED_REMEMBERED


# --- a peer that breaks the rules: every rule with its code

CONNECTION_ERRORS: dict[str, tuple[bytes, int]] = {
    "DATA on stream 0": (f.frame(f.DATA, 0, 0, b"x"), f.PROTOCOL_ERROR),
    "DATA on an idle stream": (f.frame(f.DATA, 0, 5, b"x"), f.PROTOCOL_ERROR),
    "DATA with too much padding": (request(1) + f.frame(f.DATA, f.PADDED, 1, b"\x05abc"), f.PROTOCOL_ERROR),
    "DATA padded but empty": (request(1) + f.frame(f.DATA, f.PADDED, 1), f.PROTOCOL_ERROR),
    "DATA on a stream the peer reset": (
        request(1) + f.rst_stream(1, f.CANCEL) + f.frame(f.DATA, 0, 1, b"x"),
        f.STREAM_CLOSED,
    ),
    "HEADERS on stream 0": (request(0), f.PROTOCOL_ERROR),
    "HEADERS on an even stream": (request(2), f.PROTOCOL_ERROR),
    "HEADERS after END_STREAM": (request(1, END) + request(1, END), f.STREAM_CLOSED),
    "HEADERS too short for its priority": (f.frame(f.HEADERS, 0x24, 1, b"1234"), f.FRAME_SIZE_ERROR),
    "HEADERS that depend on themselves": (
        f.frame(f.HEADERS, 0x24, 1, b"\0\0\0\1\0" + block(*REQUEST)),
        f.PROTOCOL_ERROR,
    ),
    "HEADERS padded beyond the frame": (f.frame(f.HEADERS, 0x0C, 1, b"\xffx"), f.PROTOCOL_ERROR),
    "a header block that does not decode": (
        f.frame(f.HEADERS, f.END_HEADERS, 1, b"\xff\xff\xff"),
        f.COMPRESSION_ERROR,
    ),
    "a header block of table updates": (
        f.frame(f.HEADERS, f.END_HEADERS, 1, b"\x20" * 60_000),
        f.COMPRESSION_ERROR,
    ),
    "a header block that is interrupted": (request(1, 0) + f.frame(f.PING, 0, 0, bytes(8)), f.PROTOCOL_ERROR),
    "a header block interrupted by DATA": (
        request(1) + request(3, 0) + f.frame(f.DATA, 0, 1, b"x"),
        f.PROTOCOL_ERROR,
    ),
    "a header block interrupted by an unknown frame": (
        request(1, 0) + f.frame(0x77, 0, 0),
        f.PROTOCOL_ERROR,
    ),
    "a header block continued on another stream": (
        request(1, 0) + f.frame(f.CONTINUATION, 4, 3),
        f.PROTOCOL_ERROR,
    ),
    "CONTINUATION out of the blue": (f.frame(f.CONTINUATION, f.END_HEADERS, 1), f.PROTOCOL_ERROR),
    "PRIORITY on stream 0": (f.frame(f.PRIORITY, 0, 0, bytes(5)), f.PROTOCOL_ERROR),
    "RST_STREAM on stream 0": (f.rst_stream(0, 0), f.PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (f.rst_stream(7, 0), f.PROTOCOL_ERROR),
    "RST_STREAM of wrong size": (request(1) + f.frame(f.RST_STREAM, 0, 1, b"abc"), f.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (f.frame(f.SETTINGS, 0, 1), f.PROTOCOL_ERROR),
    "SETTINGS of wrong size": (f.frame(f.SETTINGS, 0, 0, b"12345"), f.FRAME_SIZE_ERROR),
    "SETTINGS ACK with content": (f.frame(f.SETTINGS, f.ACK, 0, bytes(6)), f.FRAME_SIZE_ERROR),
    "ENABLE_PUSH of 2": (f.settings({f.ENABLE_PUSH: 2}), f.PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE of 2^31": (f.settings({f.INITIAL_WINDOW_SIZE: 2**31}), f.FLOW_CONTROL_ERROR),
    "MAX_FRAME_SIZE of 16383": (f.settings({f.MAX_FRAME_SIZE: 16383}), f.PROTOCOL_ERROR),
    "MAX_FRAME_SIZE of 2^24": (f.settings({f.MAX_FRAME_SIZE: 2**24}), f.PROTOCOL_ERROR),
    "PUSH_PROMISE": (f.frame(f.PUSH_PROMISE, 4, 1, bytes(4)), f.PROTOCOL_ERROR),
    "PING on a stream": (f.frame(f.PING, 0, 1, bytes(8)), f.PROTOCOL_ERROR),
    "PING of wrong size": (f.frame(f.PING, 0, 0, bytes(7)), f.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (f.frame(f.GOAWAY, 0, 1, bytes(8)), f.PROTOCOL_ERROR),
    "GOAWAY of wrong size": (f.frame(f.GOAWAY, 0, 0, bytes(7)), f.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of wrong size": (f.frame(f.WINDOW_UPDATE, 0, 0, bytes(3)), f.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0": (f.window_update(0, 0), f.PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond 2^31-1": (f.window_update(0, 2**31 - 1), f.FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE on an idle stream": (f.window_update(9, 1), f.PROTOCOL_ERROR),
    "a frame that is too large": (b"\x10\x00\x01\0\0\0\0\0\1", f.FRAME_SIZE_ERROR),
    "an unknown frame that is too large": (b"\xff\xff\xff\x77\0\0\0\0\0", f.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
def test_a_broken_connection_ends_with_the_right_code(name: str) -> None:
    """GOAWAY with the code of RFC 9113; every stream is reset, nothing is raised, later input is ignored."""
    data, code = CONNECTION_ERRORS[name]
    connection, handlers = server()
    connection.receive(data)
    assert connection.error is not None, "the connection put up with it"
    assert f.ERROR_NAMES[code] == f.ERROR_NAMES[connection.error.code]
    assert connection.closed
    assert connection.streams == {}
    _, sent, text = goaway_of(connection)
    assert (sent, text) == (code, str(connection.error).encode())
    for handler in handlers:
        assert handler.names()[-1] in ("reset", "end")
    connection.receive(request(101))
    assert take(connection) == b""


STREAM_ERRORS: dict[str, tuple[bytes, int]] = {
    "no :method": (f.frame(f.HEADERS, 4, 1, block(*REQUEST[1:])), f.PROTOCOL_ERROR),
    "no :scheme": (f.frame(f.HEADERS, 4, 1, block(REQUEST[0], *REQUEST[2:])), f.PROTOCOL_ERROR),
    "no :path": (f.frame(f.HEADERS, 4, 1, block(*REQUEST[:2], *REQUEST[3:])), f.PROTOCOL_ERROR),
    "an empty :path": (
        f.frame(f.HEADERS, 4, 1, block((":method", "POST"), (":scheme", "http"), (":path", ""))),
        f.PROTOCOL_ERROR,
    ),
    "a pseudo-header twice": (f.frame(f.HEADERS, 4, 1, block(REQUEST[0], *REQUEST)), f.PROTOCOL_ERROR),
    "an unknown pseudo-header": (f.frame(f.HEADERS, 4, 1, block((":x", "y"), *REQUEST)), f.PROTOCOL_ERROR),
    "a response's pseudo-header": (
        f.frame(f.HEADERS, 4, 1, block((":status", "200"), *REQUEST)),
        f.PROTOCOL_ERROR,
    ),
    "a late pseudo-header": (
        f.frame(f.HEADERS, 4, 1, block(("x", "y"), *REQUEST)),
        f.PROTOCOL_ERROR,
    ),
    "an upper-case name": (request(1, 4, ("X-Y", "z")), f.PROTOCOL_ERROR),
    "an empty name": (request(1, 4, ("", "z")), f.PROTOCOL_ERROR),
    "a name with a space": (request(1, 4, ("x y", "z")), f.PROTOCOL_ERROR),
    "a name with a line end": (request(1, 4, ("x\r\ny", "z")), f.PROTOCOL_ERROR),
    "a value with a line end": (request(1, 4, ("x", "a\r\nb: c")), f.PROTOCOL_ERROR),
    "a value with a NUL": (request(1, 4, ("x", "a\0b")), f.PROTOCOL_ERROR),
    "a connection header": (request(1, 4, ("connection", "close")), f.PROTOCOL_ERROR),
    "a transfer encoding": (request(1, 4, ("transfer-encoding", "chunked")), f.PROTOCOL_ERROR),
    "a te other than trailers": (request(1, 4, ("te", "gzip")), f.PROTOCOL_ERROR),
    "an invalid content-length": (request(1, 4, ("content-length", "-1")), f.PROTOCOL_ERROR),
    "two content-lengths": (
        request(1, 4, ("content-length", "1"), ("content-length", "2")),
        f.PROTOCOL_ERROR,
    ),
    "a body shorter than its content-length": (
        request(1, 4, ("content-length", "4")) + f.frame(f.DATA, 1, 1, b"abc"),
        f.PROTOCOL_ERROR,
    ),
    "a body longer than its content-length": (
        request(1, 4, ("content-length", "2")) + f.frame(f.DATA, 0, 1, b"ab") + f.frame(f.DATA, 1, 1, b"c"),
        f.PROTOCOL_ERROR,
    ),
    "no body for its content-length": (request(1, END, ("content-length", "4")), f.PROTOCOL_ERROR),
    "DATA after END_STREAM": (request(1, END) + f.frame(f.DATA, 0, 1, b"x"), f.STREAM_CLOSED),
    "trailers that do not end": (
        request(1) + f.frame(f.HEADERS, 4, 1, block(("x", "y"))),
        f.PROTOCOL_ERROR,
    ),
    "a pseudo-header in trailers": (
        request(1) + f.frame(f.HEADERS, END, 1, block((":path", "/"))),
        f.PROTOCOL_ERROR,
    ),
    "PRIORITY of wrong size": (request(1) + f.frame(f.PRIORITY, 0, 1, bytes(4)), f.FRAME_SIZE_ERROR),
    "PRIORITY on itself": (request(1) + f.frame(f.PRIORITY, 0, 1, b"\0\0\0\1\0"), f.PROTOCOL_ERROR),
    "a stream's WINDOW_UPDATE of 0": (request(1) + f.window_update(1, 0), f.PROTOCOL_ERROR),
    "a stream's window beyond 2^31-1": (request(1) + f.window_update(1, 2**31 - 1), f.FLOW_CONTROL_ERROR),
}


@pytest.mark.parametrize("name", STREAM_ERRORS)
def test_a_broken_stream_is_reset_alone(name: str) -> None:
    """RST_STREAM with the code of RFC 9113; the connection and the other streams go on."""
    data, code = STREAM_ERRORS[name]
    connection, handlers = server()
    connection.receive(data)
    assert connection.error is None
    resets = [frame for frame in split_frames(take(connection)) if frame[0] == f.RST_STREAM]
    assert [(stream_id, payload) for _, _, stream_id, payload in resets] == [(1, code.to_bytes(4, "big"))]
    assert 1 not in connection.streams
    for handler in handlers:
        assert [reset[0] for reset in handler.all_of("reset")] == [code]
    connection.receive(request(101) + f.frame(f.DATA, 0, 101, b"well"))
    assert handlers[-1].data() == b"well"


def test_a_content_length_that_is_right_is_fine() -> None:
    """Padding does not count, and trailers may end it."""
    connection, handlers = server()
    connection.receive(
        request(1, 4, ("content-length", "6"))
        + f.frame(f.DATA, 0, 1, b"abc")
        + f.frame(f.DATA, f.PADDED, 1, b"\x02de\0\0")
        + f.frame(f.DATA, 1, 1, b"f")
    )
    assert handlers[0].data() == b"abcdef"
    assert handlers[0].names()[-1] == "end"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r",
        b"P" + bytes(100),
    ],
)
def test_a_server_refuses_what_is_not_http2(data: bytes) -> None:
    """At the first byte that cannot be the preface."""
    connection = Http2Connection(client=False, on_request=lambda stream, headers: Recorder())
    connection.receive(data)
    assert connection.error is not None
    assert "invalid HTTP/2 connection preface" in str(connection.error)
    assert goaway_of(connection)[1] == f.PROTOCOL_ERROR


@pytest.mark.parametrize("as_client", [True, False])
@pytest.mark.parametrize(
    "first", [f.frame(f.PING, 0, 0, bytes(8)), f.frame(f.SETTINGS, f.ACK, 0), f.frame(f.DATA, 0, 1, b"x")]
)
def test_the_first_frame_must_be_settings(first: bytes, as_client: bool) -> None:
    """In either role."""
    connection = Http2Connection(client=as_client, on_request=lambda stream, headers: Recorder())
    connection.receive((b"" if as_client else f.PREFACE) + first)
    assert connection.error is not None
    assert "first frame must be SETTINGS" in str(connection.error)


CLIENT_ERRORS: dict[str, tuple[bytes, int, bool]] = {
    "DATA before HEADERS": (f.frame(f.DATA, 0, 1, b"x"), f.PROTOCOL_ERROR, False),
    "a response without :status": (
        f.frame(f.HEADERS, 4, 1, block(("x", "y"))),
        f.PROTOCOL_ERROR,
        False,
    ),
    "a response with a request's headers": (request(1), f.PROTOCOL_ERROR, False),
    "two statuses": (
        f.frame(f.HEADERS, 4, 1, block((":status", "200"), (":status", "200"))),
        f.PROTOCOL_ERROR,
        False,
    ),
    "trailers with :status": (
        f.frame(f.HEADERS, 4, 1, block(*RESPONSE)) + f.frame(f.HEADERS, END, 1, block(*RESPONSE)),
        f.PROTOCOL_ERROR,
        False,
    ),
    "a stream opened by the server": (f.frame(f.HEADERS, 4, 2, block(*RESPONSE)), f.PROTOCOL_ERROR, True),
    "an answer to a request never made": (
        f.frame(f.HEADERS, 4, 3, block(*RESPONSE)),
        f.PROTOCOL_ERROR,
        True,
    ),
    "a push": (f.frame(f.PUSH_PROMISE, 4, 1, bytes(4) + block(*REQUEST)), f.PROTOCOL_ERROR, True),
}


@pytest.mark.parametrize("name", CLIENT_ERRORS)
def test_a_client_rejects_an_invalid_server(name: str) -> None:
    """The stream is lost, or the whole connection, as the fault demands."""
    data, code, whole = CLIENT_ERRORS[name]
    connection, recorder = client()
    connection.receive(data)
    assert connection.closed is whole
    assert [reset[0] for reset in recorder.all_of("reset")] == [f.CANCEL if whole else code]
    assert connection.streams == {}
    if whole:
        assert goaway_of(connection)[1] == code
    else:
        assert take(connection) == f.rst_stream(1, code)


# --- what must be put up with

HARMLESS = {
    "an unknown frame": f.frame(0x77, 0xFF, 5, b"anything"),
    "unknown flags": f.frame(f.PING, 0xFE, 0, bytes(8)),
    "an unknown setting": f.settings({0x99: 7}),
    "SETTINGS ACK": f.frame(f.SETTINGS, f.ACK, 0),
    "PRIORITY on an idle stream": f.frame(f.PRIORITY, 0, 33, bytes(5)),
    "RST_STREAM on a closed stream": request(1) + f.rst_stream(1, 8) + f.rst_stream(1, 8),
    "WINDOW_UPDATE on a closed stream": request(1) + f.rst_stream(1, 8) + f.window_update(1, 1),
    "an unknown error code": request(1) + f.rst_stream(1, 0xDEADBEEF),
    "padding and priority on HEADERS": f.frame(
        f.HEADERS, 0x2C, 1, b"\x03" + b"\0\0\0\0\x10" + block(*REQUEST) + b"\0\0\0"
    ),
    "the reserved bit of a stream id": request(1) + f.frame(f.DATA, 0, 1 | 1 << 31, b"x"),
    "empty DATA": request(1) + f.frame(f.DATA, 0, 1) * 100,
    "trailers from the client": request(1) + f.frame(f.HEADERS, END, 1, block(("x", "y"))),
    "two table size updates": f.frame(f.HEADERS, 4, 1, b"\x20\x3f\xe1\x1f" + block(*REQUEST)),
    "GOAWAY": f.goaway(0, 0, "bye"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_unusual_but_valid_frames_are_accepted(name: str) -> None:
    """The connection stays open, and a later request is served."""
    connection, handlers = server()
    connection.receive(HARMLESS[name])
    assert connection.error is None
    connection.receive(request(101))
    assert handlers[-1].names() == ["headers"]
    assert f.RST_STREAM not in kinds(take(connection))


def test_a_smaller_header_table_is_acknowledged_in_the_next_block() -> None:
    """A peer that disables the dynamic table receives a size update of 0, which its decoder requires."""
    connection, _ = client()
    connection.receive(f.settings({f.HEADER_TABLE_SIZE: 0}))
    take(connection)
    decoder = hpack.Decoder()
    decoder.header_table_size = 4096
    decoder.max_allowed_table_size = 0
    connection.open_stream(REQUEST, Caller().bind)
    [(_, _, _, payload)] = split_frames(take(connection))
    assert [(bytes(n).decode(), bytes(v).decode()) for n, v in decoder.decode(payload, raw=True)] == list(
        REQUEST
    )
