"""The measures of growth find what they are for."""

from __future__ import annotations

import re

import pytest

from tests.support import growth


@pytest.mark.parametrize("text", [r"a+b", r"\beyJ[a-z-]{8,}\.x", r"(?:x(?:a*)y)?", r"a*|b+c"])
def test_an_expression_that_reads_a_run_again_is_found(text: str) -> None:
    assert growth.reads_again(re.compile(text))


@pytest.mark.parametrize("text", [r"ba+", r"a{1,50}b", r"(?:b|ca+)", r"[ab]{8,}"])
def test_an_expression_that_consumes_what_it_reads_is_not(text: str) -> None:
    assert not growth.reads_again(re.compile(text))


@pytest.mark.parametrize("text", [r"a*a*b", r"[ab]+b", r"(?:ab|b)*c", r".*x", r"(a+)?a", r"[^b]*(?:c|d)"])
def test_an_expression_that_gives_characters_back_is_found(text: str) -> None:
    assert growth.backtracks(re.compile(text))


@pytest.mark.parametrize("text", [r"a*b*c", r"[a-y]+ [b-z]+", r"(?:\[[0-9]+\]|[^:]+):([0-9]{1,5})"])
def test_an_expression_that_keeps_what_it_has_is_not(text: str) -> None:
    assert not growth.backtracks(re.compile(text))


def test_calls_and_lines_are_counted() -> None:
    def loop(count: int) -> None:
        for _ in range(count):
            len("")

    assert growth.calls(lambda: loop(1000)) - growth.calls(lambda: loop(500)) == 500
    assert growth.lines(lambda: loop(1000)) - growth.lines(lambda: loop(500)) == 1000
