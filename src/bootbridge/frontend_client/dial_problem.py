"""What the error text of a failed dial means: servers and agents, ours and the originals, send only that."""

from __future__ import annotations

from enum import Enum

from bootbridge.errors import OperatorError


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


# The hop that failed, and the fix.
_EXPLANATIONS = {
    DialProblem.NO_AGENT: (
        "server, no agent",
        "is an agent connected? `bootbridge top`; the server's log has the reason of each strategy",
    ),
    DialProblem.NO_ROUTE: ("agent to endpoint", "the agent's machine has no route to it"),
    DialProblem.REFUSED: ("agent to endpoint", "nothing listens on that port"),
    DialProblem.FORBIDDEN: (
        "agent",
        "allow it with proxy-agent --allow-destinations; loopback and link-local must be listed",
    ),
    DialProblem.NAME_NOT_FOUND: (
        "agent",
        "the agent resolves the name: give one that it knows, or an address",
    ),
    DialProblem.TIMED_OUT: (
        "agent to endpoint",
        "a firewall drops the packets, or the agent is overloaded",
    ),
    DialProblem.OTHER: ("server", "the logs of server and agent have more"),
}


def explain_dial_error(address: str, reason: str) -> OperatorError:
    """Returns the error of a failed dial, with its hop and the fix."""
    hop, hint = _EXPLANATIONS[problem_of(reason)]
    return OperatorError(f"dial failed ({hop}): {reason}", subject=f"{address}", hint=hint)
