"""Every way to cut a byte stream, and the promise that no cut makes a difference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Outcome = TypeVar("Outcome")
# A parser under test: takes the pieces of a stream, returns all results.
Parser = Callable[[Iterable[bytes]], Outcome]


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """``data`` cut at ``places``, which may lie anywhere, in any order, more than once."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def all_ways(data: bytes) -> Iterator[list[bytes]]:
    """Byte by byte, and in two pieces at each position."""
    yield [data[at : at + 1] for at in range(len(data))]
    for at in range(len(data) + 1):
        yield [data[:at], data[at:]]


def feed_all_ways(parser: Parser[Outcome], data: bytes) -> Outcome:
    """What ``data`` leads to; fails if that depends on how it is cut."""
    expected = parser([data])
    for pieces in all_ways(data):
        assert expected == parser(pieces)
    return expected
