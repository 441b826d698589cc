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


@pytest.mark.parametrize(
    ("protocol", "messages", "unexplained"),
    [
        ("GRPC", ("deadline exceeded", "dial unix", "unexpected EOF"), set()),
        ("HTTPConnect", ("dial unix", "deadline exceeded", "No agent available"), {TIMED_OUT}),
        ("GRPC", ("something new",), {OTHER}),
    ],
)
def test_an_outage_explains_some_reasons(
    protocol: str, messages: tuple[str, ...], unexplained: set[str]
) -> None:
    """Over gRPC a kube-apiserver waits for a server, over HTTP CONNECT it does not."""
    result = StepResult("server", protocol, admissions(*messages), changed=10)
    assert {kind_of(each.message) for each in result.unexplained} == unexplained


def test_an_outage_explains_no_rejection_of_what_was_sent_when_it_was_over() -> None:
    result = StepResult("server", "GRPC", admissions("dial unix", "dial unix", "dial unix"), changed=1.5)
    assert [each.at for each in result.unexplained] == [2.0]


def test_the_table_has_a_row_for_each_step_and_protocol() -> None:
    result = StepResult("server, Go to ours", "GRPC", admissions("dial unix", "dial unix"), 10)
    row = "| server, Go to ours | GRPC | 2 | 2 | 1.5 s | no server 2 | 0.0 s |"
    assert table([result.document()])[2:] == [row]
