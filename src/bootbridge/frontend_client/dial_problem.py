"""What the error text of a failed dial means: servers and agents, ours and the originals, send only that."""

from __future__ import annotations

from enum import Enum


class DialProblem(Enum):
    """The words by which a text is recognised, in lower case."""

    NO_AGENT = ("no agent available", "no tunnels available")
    NO_ROUTE = ("no route to host", "network is unreachable")
    REFUSED = ("connection refused",)
    FORBIDDEN = ("destination refused by",)
    NAME_NOT_FOUND = ("no such host", "name or service not known")
    TIMED_OUT = ("i/o timeout", "deadline exceeded", "timed out", "no answer")
    OTHER = ("",)


def problem_of(reason: str) -> DialProblem:
    text = reason.lower()
    return next(problem for problem in DialProblem if any(word in text for word in problem.value))
