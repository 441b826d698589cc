"""The verdict on a migration's steps; needs no lab."""

from __future__ import annotations

import pytest

from tests.e2e.migration.step_results import (
    CUT,
    NO_AGENT,
    NO_SERVER,
    OTHER,
    TIMED_OUT,
    StepResult,
    StepResults,
    kind_of,
    table,
)
from tests.lab.admission_load import CALL_FAILED, AdmissionResult

MESSAGES = {
    'dial unix /run/s.socket: connect: no such file or directory"': NO_SERVER,
    "No agent available": NO_AGENT,
    "proxy error from socket while dialing: 500 Internal Server Error": NO_AGENT,
    "context deadline exceeded": TIMED_OUT,
    "unexpected EOF": CUT,
    "something new": OTHER,
}


def admissions(*messages: str) -> tuple[AdmissionResult, ...]:
    return tuple(
        AdmissionResult(0, float(at), 0.5, deniable=False, status=500, message=f"{CALL_FAILED}: {message}")
        for at, message in enumerate(messages)
    )


@pytest.mark.parametrize(("message", "kind"), MESSAGES.items(), ids=MESSAGES.values())
def test_a_message_has_a_kind(message: str, kind: str) -> None:
    assert kind_of(message) == kind


def test_a_reason_that_the_measure_does_not_have_is_found() -> None:
    """In its own protocol; a timeout from Go to Go permits one, and the reasons of an outage always count."""
    steps = StepResults(
        [
            StepResult("Go to Go", "GRPC", admissions("deadline exceeded")),
            StepResult("Go to Go", "HTTPConnect", admissions("unexpected EOF")),
            StepResult("to ours", "GRPC", admissions("deadline exceeded", "dial unix")),
            StepResult("to ours", "HTTPConnect", admissions("deadline exceeded", "No agent available")),
        ]
    )
    assert steps.reasons_beyond("to ours", "Go to Go") == {"HTTPConnect": {TIMED_OUT}}
    assert steps.reasons_beyond("Go to Go", "Go to Go") == {}


def test_the_table_has_a_row_for_each_step_and_protocol() -> None:
    result = StepResult("server, Go to ours", "GRPC", admissions("dial unix", "dial unix"))
    row = "| server, Go to ours | GRPC | 2 | 2 | 1.5 s | no server 2 | 0.0 s |"
    assert table([result.document()])[2:] == [row]
