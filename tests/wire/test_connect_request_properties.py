"""HTTP CONNECT, for any bytes at all and however they are cut."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from bootbridge.wire.connect_request import ConnectParser, ConnectRequest, Refusal

LIMIT = 96
HEAD = b"CONNECT [2001:db8::5]:8443 HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: curl/8\r\n\r\n"

fragments = st.sampled_from(
    [
        b"CONNECT ",
        b"GET ",
        b"a:1 ",
        b"[::1]:443 ",
        b"HTTP/1.1",
        b"HTTP/2.0",
        b"\r\n",
        b"\n",
        b"\r",
        b"X: y",
        b"\x00",
    ]
)
nearly_http = st.lists(st.one_of(fragments, st.binary(max_size=8)), max_size=16).map(b"".join)
any_bytes = st.one_of(
    nearly_http, st.binary(max_size=2 * LIMIT), st.binary(max_size=20).map(lambda b: HEAD + b)
)


def run(pieces: list[bytes]) -> tuple[ConnectRequest | Refusal | None, bytes]:
    parser = ConnectParser(LIMIT)
    for index, piece in enumerate(pieces):
        result = parser.receive(piece)
        assert len(parser._buffer) < LIMIT
        if result is not None:
            tunnel = parser.leftover + b"".join(pieces[index + 1 :])
            return result, tunnel if isinstance(result, ConnectRequest) else b""
    return None, b""


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(any_bytes, st.lists(st.integers(0, 2 * LIMIT), max_size=6))
@example(HEAD + b"tail", [len(HEAD) - 3, len(HEAD) - 2, len(HEAD) - 1, len(HEAD)])
@example(b"CONNECT a:1 HTTP/1.1\nX: y\n\r\nt", [26, 27])
def test_any_cut_of_any_bytes_gives_the_same_outcome(data: bytes, places: list[int]) -> None:
    """Result and tunnel bytes depend on the bytes alone, and what is held stays below the limit."""
    assert run(cut(data, places)) == run([data])


@given(any_bytes)
def test_byte_by_byte_gives_the_same_outcome(data: bytes) -> None:
    """The finest cut of all."""
    assert run([data[i : i + 1] for i in range(len(data))]) == run([data])


@given(any_bytes)
def test_any_bytes_give_a_request_a_refusal_or_need_more(data: bytes) -> None:
    """Past the limit there is always a decision, and every refusal can be sent."""
    result, _ = run([data])
    if isinstance(result, Refusal):
        assert result.reply.startswith(f"HTTP/1.1 {result.status} ".encode())
    assert result is not None or len(data) < LIMIT
