"""Pieces become a whole, and memory follows what came, not what was announced."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bootbridge.wire.frame_buffer import FrameBuffer

HEAD = 5


@given(st.lists(st.binary(max_size=300)), st.integers(0, 1 << 20))
def test_the_whole_is_its_pieces_in_order(pieces: list[bytes], more: int) -> None:
    whole = b"".join(pieces)
    assembly = FrameBuffer(len(whole) + more)
    for piece in pieces:
        assembly.add(memoryview(piece))
    assert (bytes(assembly.view()), assembly.size, assembly.missing) == (whole, len(whole), more)


def test_what_is_only_announced_takes_no_room() -> None:
    assembly = FrameBuffer(1 << 30)
    assembly.add(memoryview(b"x"))
    assert len(assembly._room) <= 64 * 1024


def test_room_at_most_doubles() -> None:
    assembly = FrameBuffer(1 << 22)
    for _ in range(64):
        assembly.add(memoryview(bytes(16384)))
        assert len(assembly._room) <= max(2 * assembly.size, 64 * 1024)


def test_what_was_taken_stays_when_the_next_is_put_together() -> None:
    assembly = FrameBuffer(HEAD)
    assembly.add(memoryview(b"first"))
    first = assembly.take(HEAD)
    assembly.add(memoryview(b"other"))
    assert (bytes(first), bytes(assembly.view())) == (b"first", b"other")


def test_the_need_may_be_raised_once_the_head_is_there() -> None:
    assembly = FrameBuffer(HEAD)
    assembly.add(memoryview(b"12345"))
    assembly.need = HEAD + 3
    assert assembly.missing == 3
    assembly.add(memoryview(b"678"))
    assert bytes(assembly.view()) == b"12345678"
