"""Merkle trees over statements: each statement is included at one position, and nothing else is."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootbridge.trust.evidence.statement_tree import (
    PATH_MAX,
    STATEMENTS_MAX,
    Inclusion,
    PathInvalid,
    build,
    root_of,
)

STATEMENTS = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=STATEMENTS_MAX, unique=True)


@given(STATEMENTS)
@settings(deadline=None)
def test_every_statement_is_included_at_its_position(statements: list[bytes]) -> None:
    root, inclusions = build(statements)
    assert [each.position for each in inclusions] == list(range(len(statements)))
    assert {root_of(*each) for each in zip(statements, inclusions, strict=True)} == {root}
    assert {len(each.path) for each in inclusions} == {(len(statements) - 1).bit_length()}


@given(STATEMENTS, st.data())
@settings(deadline=None)
def test_a_changed_statement_position_or_path_gives_another_root(
    statements: list[bytes], data: st.DataObject
) -> None:
    root, inclusions = build(statements)
    number = data.draw(st.integers(0, len(statements) - 1))
    statement, inclusion = statements[number], inclusions[number]
    other = data.draw(st.binary(min_size=32, max_size=32).filter(lambda each: each != statement))
    assert root_of(other, inclusion) != root
    size = 2 ** len(inclusion.path)
    if size > 1:
        moved = data.draw(st.integers(0, size - 1).filter(lambda each: each != inclusion.position))
        assert root_of(statement, replace(inclusion, position=moved)) != root
        level = data.draw(st.integers(0, len(inclusion.path) - 1))
        path = [*inclusion.path]
        path[level] = hashlib.sha256(path[level]).digest()
        assert root_of(statement, replace(inclusion, path=tuple(path))) != root
        assert root_of(statement, Inclusion(inclusion.position % (size // 2), inclusion.path[:-1])) != root


def test_hashes_of_inner_nodes_and_of_padding_are_no_statements() -> None:
    """A leaf has another prefix: a statement that equals a node's hash has another leaf."""
    root, inclusions = build([bytes([number]) * 32 for number in range(3)])
    upper = inclusions[0].path[1]  # the hash over the third leaf and padding
    padding = inclusions[2].path[0]
    assert root_of(upper, Inclusion(1, (inclusions[2].path[1],))) != root
    assert root_of(padding, Inclusion(3, inclusions[2].path)) != root
    assert root_of(root, Inclusion(0, ())) != root


@pytest.mark.parametrize(
    ("inclusion", "problem"),
    [
        (Inclusion(0, (bytes(32),) * (PATH_MAX + 1)), "path of 7 hashes"),
        (Inclusion(0, (bytes(31),)), "not 32 bytes"),
        (Inclusion(0, (bytes(33),)), "not 32 bytes"),
        (Inclusion(1, ()), "position 1 in a tree of 1 leaves"),
        (Inclusion(4, (bytes(32),) * 2), "position 4 in a tree of 4 leaves"),
    ],
)
def test_a_path_that_no_tree_has_is_refused(inclusion: Inclusion, problem: str) -> None:
    with pytest.raises(PathInvalid, match=problem):
        root_of(bytes(32), inclusion)


@pytest.mark.parametrize("number", [0, STATEMENTS_MAX + 1])
def test_a_tree_has_one_to_64_statements(number: int) -> None:
    with pytest.raises(ValueError, match="1 to 64 are accepted"):
        build([bytes(32)] * number)
