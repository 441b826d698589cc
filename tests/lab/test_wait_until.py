"""`until` in tests: a condition that raises is retried, and a timeout reports the last error."""

from __future__ import annotations

import pytest

from bootbridge.errors import OperatorError
from tests.support.lab import SHORT_PAUSES, until


def test_condition_that_raises_is_retried() -> None:
    """As when `ctr` times out on a busy machine."""
    answers = iter([OperatorError("node1: ctr tasks list: timed out after 60s"), ValueError(), False, True])

    def condition() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    until(condition, "it runs", 60, SHORT_PAUSES)
    assert list(answers) == []


def test_timeout_reports_the_last_error() -> None:
    def condition() -> object:
        raise OperatorError("node1: ctr tasks list: no containerd")

    with pytest.raises(AssertionError, match=r"timed out after 0s: it runs: .*ctr tasks list: no containerd"):
        until(condition, "it runs", 0.0)
