"""HPACK header blocks, checked with the hpack library, and limits of the decoder."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.wire.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2ConnectionError
from bootbridge.wire.hpack_headers import HEADER_LIST_BYTES_MAX, Decoder, encode
from tests.support import growth

names = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=20)
values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60)
header_lists = st.lists(st.tuples(names, values), max_size=12)


@given(header_lists)
def test_our_blocks_need_no_state_and_leave_none(headers: list[tuple[str, str]]) -> None:
    """A block built once can be sent on every connection: it never touches the dynamic table."""
    block = encode(tuple(headers))
    decoder = hpack.Decoder()
    for _ in range(2):
        assert [tuple(field) for field in decoder.decode(block)] == headers
    assert len(decoder.header_table.dynamic_entries) == 0


@given(st.lists(header_lists, max_size=6), st.booleans())
def test_we_read_what_a_compressing_peer_writes(lists: list[list[tuple[str, str]]], huffman: bool) -> None:
    """With dynamic table and Huffman codes, block after block."""
    encoder, decoder = hpack.Encoder(), Decoder()
    for headers in lists:
        assert headers == decoder.decode(encoder.encode(headers, huffman=huffman))


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_block_decodes_or_is_a_connection_error(blocks: list[bytes]) -> None:
    """Nothing else is raised, for any block in any state."""
    assert _fault_of(blocks) in (None, COMPRESSION_ERROR, ENHANCE_YOUR_CALM)


def _fault_of(blocks: list[bytes]) -> int | None:
    decoder = Decoder()
    try:
        for block in blocks:
            decoder.decode(block)
    except Http2ConnectionError as error:
        return error.code
    return None


def test_values_may_hold_any_byte() -> None:
    """Bytes beyond ASCII survive as Latin-1, so that nothing fails to decode."""
    block = b"\x00\x01x\x03\xff\x80\xe4"
    assert Decoder().decode(block) == [("x", "\xff\x80\xe4")]


SLOW = {
    "table updates": b"\x20" * HEADER_LIST_BYTES_MAX,
    "long table updates": b"\x3f\x80\x80\x00" * (HEADER_LIST_BYTES_MAX // 4),
    "one endless integer": b"\x3f" + b"\x80" * HEADER_LIST_BYTES_MAX,
    "empty fields": b"\x00\x00\x00" * (HEADER_LIST_BYTES_MAX // 3),
    "indexed fields": b"\x82" * HEADER_LIST_BYTES_MAX,
    "table insertions": b"\x40\x01a\x00" * (HEADER_LIST_BYTES_MAX // 4),
}


# Lines of Python for each byte of the block.
LINES_PER_BYTE_MAX = 20


@pytest.mark.parametrize("name", SLOW)
def test_the_most_expensive_block_is_refused_in_few_steps(name: str) -> None:
    """The largest block of the most awkward kind."""

    def decode() -> None:
        with pytest.raises(Http2ConnectionError):
            Decoder().decode(SLOW[name])

    assert growth.lines(decode) <= LINES_PER_BYTE_MAX * len(SLOW[name])
    if name == "one endless integer":
        # Each of its bytes would be a step of arithmetic with an ever longer number: hpack before 4.2.
        assert growth.lines(decode, package="hpack") < 500
