"""The frame buffer joins pieces; its memory depends on received bytes, not on announced sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bootbridge.wire.frame_buffer import FrameBuffer

HEAD = 5


@given(st.lists(st.binary(max_size=300)), st.integers(0, 1 << 20))
def test_the_result_is_the_pieces_in_order(pieces: list[bytes], more: int) -> None:
    whole = b"".join(pieces)
    assembly = FrameBuffer(len(whole) + more)
    for piece in pieces:
        assembly.add(memoryview(piece))
    assert (bytes(assembly.view()), assembly.size, assembly.missing) == (whole, len(whole), more)


def test_an_announced_size_allocates_no_memory() -> None:
    assembly = FrameBuffer(1 << 30)
    assembly.add(memoryview(b"x"))
    assert len(assembly._room) <= 64 * 1024


def test_the_allocation_at_most_doubles() -> None:
    assembly = FrameBuffer(1 << 22)
    for _ in range(64):
        assembly.add(memoryview(bytes(16384)))
        assert len(assembly._room) <= max(2 * assembly.size, 64 * 1024)


def test_a_taken_result_is_not_changed_by_the_next_one() -> None:
    assembly = FrameBuffer(HEAD)
    assembly.add(memoryview(b"first"))
    first = assembly.take(HEAD)
    assembly.add(memoryview(b"other"))
    assert (bytes(first), bytes(assembly.view())) == (b"first", b"other")


def test_the_needed_size_may_grow_after_the_head() -> None:
    assembly = FrameBuffer(HEAD)
    assembly.add(memoryview(b"12345"))
    assembly.need = HEAD + 3
    assert assembly.missing == 3
    assembly.add(memoryview(b"678"))
    assert bytes(assembly.view()) == b"12345678"
