"""Checks the table of the payload's programs, and the matrix in the documentation that is made from it."""

from __future__ import annotations

import pytest

from bootbridge.bootstrap.plan.payload_programs import (
    FAMILIES,
    PAYLOAD_PROGRAMS,
    Family,
    support,
)
from tests.tools import payload_matrix


def test_the_documented_matrix_is_that_of_the_table() -> None:
    """Otherwise: python -m tests.tools.payload_matrix --write."""
    text = payload_matrix.DOCUMENT.read_text()

    assert payload_matrix.BEGIN in text
    assert payload_matrix.updated(text) == text


@pytest.mark.parametrize("family", FAMILIES)
def test_our_image_works_with_every_release(family: Family) -> None:
    assert all(str(support(each, ours=True, family=family)) == "yes" for each in PAYLOAD_PROGRAMS)


def test_the_payloads_programs_differ_by_release_and_family() -> None:
    none, old, middle, new = PAYLOAD_PROGRAMS

    assert str(support(none, ours=False, family="IPv4")) == "no: not in the payload, give --image"
    assert str(support(old, ours=False, family="IPv4")) == "yes: health port closed by nft"
    assert str(support(old, ours=False, family="IPv6")) == (
        "yes: health port closed by nft, IPv6 address in brackets"
    )
    assert str(support(old, ours=False, family="dual stack")) == (
        "yes: health port closed by nft, IPv6 address in brackets, agents dial the first address only"
    )
    for each in (middle, new):
        assert str(support(each, ours=False, family="IPv6")) == "yes"
        dual = support(each, ours=False, family="dual stack")
        assert str(dual) == "yes: agents dial the first address only"
