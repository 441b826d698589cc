"""A connection for any bytes, in any split."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.frame_reader import FRAME_BYTES_MAX
from bootbridge.wire.hpack_headers import encode
from bootbridge.wire.http2_connection import Http2Connection
from tests.support.wire_feeds import cut, feed_all_ways
from tests.support.wire_frame_sequences import (
    FrameSequence,
    Received,
    damaged,
    receive_as_client,
    receive_as_server,
    valid_from_client,
    valid_from_server,
)
from tests.support.wire_peers import REQUEST, Caller, take

places = st.lists(st.integers(0, 5000), max_size=12)

ALL_STEPS = [
    (name, which, choice, b"content")
    for choice in (0, 2, 4, 8, 14, 16)
    for which, name in enumerate(["open", "data", "data", "ping"])
] + [
    ("settings", 0, 4, b""),
    ("window", 0, 9, b""),
    ("unknown", 0, 3, b"?"),
    ("reset", 0, 8, b""),
    ("end", 1, 16, b"last"),
    ("end", 2, 2, b"last"),
]


@pytest.mark.parametrize("as_client", [True, False])
def test_a_frame_sequence_gives_the_same_events_for_any_split(as_client: bool) -> None:
    """Whole, byte by byte, and split at each position: the same events and the same answers."""
    receive = receive_as_server if as_client else receive_as_client
    events, _, error, _ = feed_all_ways(receive, FrameSequence(client=as_client).encode(ALL_STEPS))
    assert error is None
    assert {event[1] for event in events} >= {"headers", "data", "reset", "end"}


@given(valid_from_client, places)
def test_a_valid_client_is_accepted_for_any_split(data: bytes, places: list[int]) -> None:
    """No split of a valid stream makes a difference to a server, and no valid stream is an error."""
    whole = receive_as_server([data])
    assert whole == receive_as_server(cut(data, places))
    assert whole[2] is None


@given(valid_from_server, places)
def test_a_valid_server_is_accepted_for_any_split(data: bytes, places: list[int]) -> None:
    """The same for a client."""
    whole = receive_as_client([data])
    assert whole == receive_as_client(cut(data, places))
    assert whole[2] is None


@pytest.mark.parametrize(
    ("receive", "valid"),
    [(receive_as_server, valid_from_client), (receive_as_client, valid_from_server)],
    ids=["server", "client"],
)
def test_any_bytes_give_events_or_a_protocol_error(
    receive: Callable[[Iterable[bytes]], Received], valid: st.SearchStrategy[bytes]
) -> None:
    """Never another exception, never more held than the bound, and the cut makes no difference."""

    @given(damaged(valid), places)
    def check(data: bytes, places: list[int]) -> None:
        whole = receive([data])
        assert whole == receive(cut(data, places))
        assert whole == receive([data[at : at + 1] for at in range(len(data))])
        if whole[2] is not None:
            assert whole[3] == [], "a stream outlived its connection"
            assert f.frame(f.GOAWAY, 0, 0)[3:] in whole[1]

    check()


# --- memory, measured

SIZE = FRAME_BYTES_MAX // 2


def grown(action: Callable[[], object]) -> int:
    """How many bytes more are allocated once ``action`` is done, while its result lives."""
    gc.collect()
    tracemalloc.start()
    try:
        result = action()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        del result
        return size
    finally:
        tracemalloc.stop()


def a_server() -> Http2Connection:
    connection = Http2Connection(client=False, on_request=lambda stream, headers: Caller().bind(stream))
    connection.receive(f.PREFACE + f.settings({}))
    take(connection)
    return connection


def request(stream_id: int) -> bytes:
    return f.frame(f.HEADERS, f.END_HEADERS, stream_id, encode(REQUEST))


@pytest.mark.parametrize(
    "beginning",
    [
        request(1) + f.frame(f.DATA, 0, 1, grpc.message_prefix(SIZE) + bytes(SIZE))[: f.HEADER_SIZE + 5],
        f.frame(f.HEADERS, f.END_HEADERS, 1, bytes(SIZE))[: f.HEADER_SIZE],
    ],
    ids=["DATA", "HEADERS"],
)
def test_a_frame_that_trickles_in_costs_its_size(beginning: bytes) -> None:
    """Half a megabyte in reads of two bytes is not held as a quarter of a million objects."""

    def attack() -> Http2Connection:
        connection = a_server()
        connection.receive(beginning)
        for _ in range(SIZE // 2 - 1):
            connection.receive(b"\0\1")
        return connection

    assert SIZE / 2 < grown(attack) < 1.5 * SIZE


def test_a_message_that_trickles_in_costs_its_size() -> None:
    """Half a megabyte in frames of three bytes."""
    size = grpc.MESSAGE_BYTES_MAX // 8

    def attack() -> Http2Connection:
        connection = a_server()
        connection.receive(request(1) + f.frame(f.DATA, 0, 1, grpc.message_prefix(size)))
        part = f.frame(f.DATA, 0, 1, b"abc") * 1000
        for _ in range(size // 3000):
            connection.receive(part)
            take(connection)
        return connection

    assert grown(attack) < 1.5 * size


def test_requests_that_are_reset_at_once_leave_no_memory() -> None:
    """Rapid reset: thousands of requests allocate no lasting memory."""

    def attack() -> Http2Connection:
        connection = a_server()
        for number in range(5_000):
            connection.receive(request(2 * number + 1) + f.rst_stream(2 * number + 1, f.CANCEL))
            if number % 100 == 0:
                take(connection)
        return connection

    assert grown(attack) < 128 * 1024


def test_streams_that_fail_leave_no_memory() -> None:
    """Streams refused, malformed or never opened."""

    def attack() -> Http2Connection:
        connection = a_server()
        bad = encode((*REQUEST, ("connection", "close")))
        for number in range(5_000):
            connection.receive(f.frame(f.HEADERS, f.END_HEADERS, 4 * number + 1, bad))
            connection.receive(f.frame(f.PRIORITY, 0, 4 * number + 3, b"bad"))
            take(connection)
        return connection

    assert grown(attack) < 128 * 1024
