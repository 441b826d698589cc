"""How tests wait for a lab: what fails now may hold soon, and what never holds says why."""

from __future__ import annotations

import pytest

from bootbridge.errors import OperatorError
from tests.support.lab import SHORT_PAUSES, until


def test_a_node_that_could_not_answer_is_asked_again() -> None:
    """As when a busy machine ends a `ctr` that would say which containers run."""
    answers = iter([OperatorError("node1: ctr tasks list: not done within 60 s"), ValueError(), False, True])

    def condition() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    until(condition, "it runs", 60, SHORT_PAUSES)
    assert list(answers) == []


def test_what_a_node_said_last_is_told_when_the_time_is_over() -> None:
    def condition() -> object:
        raise OperatorError("node1: ctr tasks list: no containerd")

    with pytest.raises(AssertionError, match=r"not within 0 s: it runs: .*ctr tasks list: no containerd"):
        until(condition, "it runs", 0.0)
