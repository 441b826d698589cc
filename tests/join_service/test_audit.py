"""The audit log: it blocks no ticket, loses no line silently, and cannot be flooded by refused callers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from bootbridge.join_service.audit import (
    REFUSALS_MAX,
    REFUSALS_PER_CALLER_MAX,
    WINDOW_SECONDS,
    AuditLog,
    AuditOutcome,
    open_audit,
)
from bootbridge.join_service.authorization import AttestedCaller
from bootbridge.runtime.line_writer import QUEUE_BYTES_MAX
from bootbridge.trust.evidence import AttestedPeer
from tests.join_service.environment import MemoryLines


def caller(name: str) -> AttestedCaller:
    return AttestedCaller(AttestedPeer("tpm", f"tpm:{name}"), "192.0.2.1")


class Audit:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.lines = MemoryLines()
        self.log = AuditLog(self.lines, lambda: self.now)

    def record(self, outcome: AuditOutcome, name: str, times: int = 1) -> None:
        for _ in range(times):
            self.log.record("ticket", outcome, caller(name), name=name)

    def written(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]


@pytest.mark.parametrize("outcome", [AuditOutcome.REFUSED, AuditOutcome.NOT_YET, AuditOutcome.FAILED])
def test_a_refused_caller_has_a_bounded_number_of_lines(outcome: AuditOutcome) -> None:
    """Its further ones are counted; other callers, and tickets, are written."""
    audit = Audit()
    audit.record(outcome, "a", REFUSALS_PER_CALLER_MAX + 7)
    audit.record(outcome, "b")
    audit.record(AuditOutcome.ISSUED, "a")
    written = audit.written()
    assert [line["node"] for line in written] == [*["a"] * REFUSALS_PER_CALLER_MAX, "b", "a"]
    assert audit.log.omitted == 7
    audit.now += WINDOW_SECONDS
    audit.record(outcome, "a")
    count, line = audit.written()[len(written) :]
    assert (count["event"], count["outcome"], count["lines"]) == ("audit", "omitted", 7)
    assert line["node"] == "a"


def test_a_failed_ticket_that_may_have_left_a_token_is_always_written() -> None:
    """Its caller has used up its lines, and disconnected while the token was created."""
    audit = Audit()
    audit.record(AuditOutcome.REFUSED, "a", REFUSALS_PER_CALLER_MAX + 1)
    audit.log.record("ticket", AuditOutcome.FAILED, caller("a"), name="a", token_id="abcdef")
    assert audit.written()[-1]["tokenID"] == "abcdef"
    # A denied request has the id of the token that it was made with.
    audit.log.record("client certificate", AuditOutcome.DENIED, caller("a"), name="a", token_id="abcdef")
    assert audit.written()[-1]["outcome"] == "failed"


def test_many_refused_callers_have_a_bounded_number_of_lines() -> None:
    audit = Audit()
    for number in range(REFUSALS_MAX + 50):
        audit.record(AuditOutcome.REFUSED, f"n{number}")
        audit.record(AuditOutcome.ISSUED, f"n{number}")
    outcomes = [line["outcome"] for line in audit.written()]
    assert outcomes.count("refused") == REFUSALS_MAX
    assert outcomes.count("issued") == REFUSALS_MAX + 50


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        os.close(fd)


def test_a_reader_that_does_not_read_blocks_no_ticket(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What does not fit is counted, logged, and reported in the audit log when the reader returns."""
    reader, writer = pipe
    monkeypatch.setattr("sys.stdout", os.fdopen(os.dup(writer), "w"))
    lines = open_audit("", lambda: 0.0)
    log = AuditLog(lines, lambda: 0.0)
    tickets = 2 * QUEUE_BYTES_MAX // 100
    for number in range(tickets):
        log.record("ticket", AuditOutcome.ISSUED, caller("a"), name=f"n{number}")
    assert log.dropped > 0
    assert [each.message for each in caplog.records].count("audit lines dropped") == 1
    data = b""
    while not data.endswith(b"}\n") or b'"dropped"' not in data:
        data += os.read(reader, 65536)
    written = [json.loads(line) for line in data.splitlines()]
    (report,) = [line for line in written if line["event"] == "audit"]
    assert report["lines"] == log.dropped
    assert len(written) - 1 + log.dropped == tickets
    assert lines.flush()
