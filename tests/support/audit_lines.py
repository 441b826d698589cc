"""Reads the audit trail of a server, and compares it with the server's metrics."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from bootbridge.common import documents
from bootbridge.proxy_server.audit_trail import AuditLine
from tests.support.process_program import until
from tests.support.tunnel_programs import Server

# Outcomes, and how the metric dial_failure_count calls them.
FAILURES = {
    "no agent": "no_agent",
    "refused": "error_response",
    "agent lost": "backend_close",
    "timed out": "backend_dial_timeout",
    "cancelled": "frontend_close",
}


def parsed(text: str) -> list[dict[str, Any]]:
    """Returns the lines; each is valid by the schema that `bootbridge schema audit` prints."""
    assert text == "" or text.endswith("\n"), f"the last line is incomplete: {text[-100:]!r}"
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        documents.convert(AuditLine, line, "audit line")
    return lines


def audit_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """Waits for so many lines, and returns them in the order of the dials."""
    until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count, f"{count} audit lines")
    lines = parsed(path.read_text())
    assert len(lines) == count
    return sorted(lines, key=lambda line: int(line["id"]))


def assert_lines_add_up(server: Server, lines: list[dict[str, Any]]) -> None:
    """Every dial has one line; outcomes and bytes add up to the server's metrics."""
    assert [line["id"] for line in lines] == list(range(1, len(lines) + 1))
    outcomes = Counter(line["outcome"] for line in lines)
    assert outcomes["established"] == server.metric("dial_duration_seconds_count")
    assert outcomes["established"] == server.metric("connection_duration_seconds_count")
    for outcome, reason in FAILURES.items():
        assert outcomes[outcome] == server.metric("dial_failure_count", reason=reason), outcome
    through_agents = [line for line in lines if line["agent"]]
    for field, direction in (("bytesUp", "to_agent"), ("bytesDown", "to_frontend")):
        total = sum(line[field] for line in through_agents)
        assert total == server.metric("transferred_bytes_total", direction=direction), field
    assert server.metric("audit_lines_dropped_total") == 0
