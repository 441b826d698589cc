"""gRPC framing and headers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.packets import Buffer
from tests.support.wire_feeds import cut, feed_all_ways

Outcome = tuple[list[bytes], str | None, bool]


def read(pieces: Iterable[bytes]) -> Outcome:
    """(messages, error, in the middle of one) of a stream that comes in these pieces."""
    messages: list[bytes] = []

    def sink(buffer: Buffer, start: int, end: int) -> None:
        messages.append(bytes(buffer[start:end]))
        assert bytes(buffer[start - 5 : start]) == grpc.message_prefix(end - start), "prefix is not in front"

    reader = grpc.MessageReader(sink)
    for piece in pieces:
        try:
            reader.receive(b"before" + piece + b"behind", 6, 6 + len(piece))
        except grpc.GrpcError as error:
            return messages, str(error), False
        assert reader._held.size < grpc.PREFIX_SIZE + grpc.MESSAGE_BYTES_MAX
    return messages, None, reader.mid_message


def framed(*messages: bytes) -> bytes:
    return b"".join(grpc.message_prefix(len(message)) + message for message in messages)


def test_messages_are_read_however_they_are_cut() -> None:
    """Whole, byte by byte, and split at each position."""
    data = framed(b"", b"a", b"hello", b"", b"x" * 20)
    assert feed_all_ways(read, data) == ([b"", b"a", b"hello", b"", b"x" * 20], None, False)


def test_an_incomplete_message_is_detected() -> None:
    assert feed_all_ways(read, framed(b"done") + framed(b"half")[:-1]) == ([b"done"], None, True)


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 4000), max_size=12))
def test_any_cut_of_any_messages_gives_the_messages(messages: list[bytes], places: list[int]) -> None:
    """And nothing is held at the end."""
    assert read(cut(framed(*messages), places)) == (messages, None, False)


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=8))
def test_any_cut_of_any_bytes_gives_the_same_outcome(data: bytes, places: list[int]) -> None:
    """Messages, then perhaps an error; never another exception."""
    assert read(cut(data, places)) == read([data])


@given(st.lists(st.binary(max_size=20), max_size=3), st.sampled_from([b"\x01\0\0\0\0", b"\0\xff\0\0\0"]))
def test_messages_before_a_bad_one_are_delivered(messages: list[bytes], bad: bytes) -> None:
    """For any split of the bytes."""
    assert feed_all_ways(read, framed(*messages) + bad)[0] == messages


def test_compression_is_refused() -> None:
    """None was negotiated."""
    assert read([b"\x01\0\0\0\x01x"])[1] == "compressed message without an agreed compression"


def test_the_largest_message_is_read_and_a_larger_one_refused() -> None:
    """4 MiB, with grpc-go's error, before any of it is held."""
    largest = bytes(grpc.MESSAGE_BYTES_MAX)
    assert read([framed(largest)]) == ([largest], None, False)
    assert read([grpc.message_prefix(len(largest) + 1)])[1] == (
        "received message larger than max (4194305 vs. 4194304)"
    )


@pytest.mark.parametrize(("first", "bad"), [(b"", b"\x01\0\0\0\0"), (b"\x01\0", b"\0\0\0\0\0\0\0\0")])
def test_a_reader_that_failed_stays_failed(first: bytes, bad: bytes) -> None:
    """Bytes after an invalid prefix cannot be interpreted."""
    messages: list[bytes] = []
    reader = grpc.MessageReader(lambda buffer, start, end: messages.append(b"!"))
    reader.receive(first, 0, len(first))
    for piece in (bad, framed(b"ok"), b"", framed(b"ok")):
        with pytest.raises(grpc.GrpcError):
            reader.receive(piece, 0, len(piece))
    assert messages == []


def test_a_message_is_not_copied_when_it_lies_whole_in_the_read() -> None:
    """The hot path: the sink gets the very buffer that was received."""
    seen: list[Buffer] = []
    buffer = framed(b"one", b"two")
    grpc.MessageReader(lambda data, start, end: seen.append(data)).receive(buffer, 0, len(buffer))
    assert all(data is buffer for data in seen)
    assert len(seen) == 2


# --- status and headers


@pytest.mark.parametrize(
    ("message", "written"),
    [
        ("plain text, with (punctuation) = \"fine\" & 'so'", None),
        ("100%", "100%25"),
        ("zwölf", "zw%C3%B6lf"),
        ("日本", "%E6%97%A5%E6%9C%AC"),
        ("a\r\nb\t\x00\x7f", "a%0D%0Ab%09%00%7F"),
        ("~tilde", None),
    ],
)
def test_a_status_message_is_percent_encoded(message: str, written: str | None) -> None:
    """Printable ASCII but the percent sign stays as it is; it is read back as it was."""
    trailers = grpc.trailers(grpc.UNKNOWN, message)
    assert trailers == (("grpc-status", "2"), ("grpc-message", written or message))
    assert grpc.status_of(trailers) == (grpc.UNKNOWN, message)


@given(st.integers(0, 16), st.text(st.characters(), max_size=50))
def test_any_status_survives_the_trailers(status: int, message: str) -> None:
    """For any text; a lone surrogate is replaced."""
    trailers = grpc.trailers(status, message)
    assert all(value.isascii() and value.isprintable() for _, value in trailers)
    assert grpc.status_of(trailers) == (status, message.encode("utf-8", "replace").decode())


@given(st.lists(st.tuples(st.sampled_from(["grpc-status", "grpc-message", ":status"]), st.text(max_size=9))))
def test_any_headers_have_a_status(headers: list[tuple[str, str]]) -> None:
    """A peer cannot answer in a way that we cannot report."""
    status, message = grpc.status_of(headers)
    assert 0 <= status < 1000
    assert isinstance(message, str)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (((":status", "503"),), (grpc.UNAVAILABLE, "the peer answered with HTTP status 503")),
        (((":status", "200"),), (grpc.UNKNOWN, "the peer ended the stream without a gRPC status")),
        ((), (grpc.UNKNOWN, "the peer ended the stream without a gRPC status")),
        ((("grpc-status", "x"),), (grpc.UNKNOWN, "the peer ended the stream without a gRPC status")),
        ((("grpc-status", "7"), ("grpc-message", "%zz%E4")), (7, "%zz\ufffd")),
        (grpc.refusal(grpc.UNKNOWN, "nope"), (grpc.UNKNOWN, "nope")),
    ],
)
def test_the_status_of_a_call(headers: tuple[tuple[str, str], ...], expected: tuple[int, str]) -> None:
    """A status, or the reason why there is none."""
    assert grpc.status_of(headers) == expected


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, None),
        ({"content-type": "application/grpc+proto"}, None),
        ({":method": "GET"}, "405"),
        ({"content-type": "text/html"}, "415"),
        ({"content-type": ""}, "415"),
    ],
)
def test_a_request_that_is_not_grpc_is_refused(changes: dict[str, str], status: str | None) -> None:
    """With an HTTP status that a browser understands too."""
    headers = {**dict(grpc.request_headers("/a/b", "c")), **changes}
    refusal = grpc.request_refusal(tuple(headers.items()))
    assert (refusal and dict(refusal)[":status"]) == status
