"""The audit line of a record: every declared field, and nothing that a peer can use to forge a line."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from bootbridge.common import documents
from bootbridge.common.field_names import camel_case
from bootbridge.proxy_server.audit_trail import AuditLine, AuditTrail, audit_line
from bootbridge.tunnel.dial_record import BY_CALLER, REFUSED, DialHistory

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_documentation_names_every_field() -> None:
    text = DOCUMENTATION.read_text()
    names = [camel_case(field.name) for field in fields(AuditLine)]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_example_of_the_documentation_is_valid() -> None:
    text = DOCUMENTATION.read_text()
    example = text[text.index("    {") : text.index("}\n") + 1]
    documents.convert(AuditLine, json.loads(example), "example")


def test_a_record_becomes_a_line() -> None:
    history = DialHistory(lambda: 1_800_000_000.25)
    record = history.start(7, "192.0.2.1:5", "grpc", "web.example:443", 10.0)
    record.try_agent("a", "default")
    history.established(record, 10.5)
    history.closed(record, 13.0, BY_CALLER, "frontend closed")
    history.ended(record, 3, 4)
    assert audit_line(record, "s") == AuditLine(
        time="2027-01-15T08:00:00.250Z",
        server_id="s",
        id=7,
        caller="192.0.2.1:5",
        protocol="grpc",
        destination="web.example:443",
        name="web.example",
        strategy="default",
        agent="a",
        tried_agents=["a"],
        outcome="established",
        hop="",
        reason="",
        connect_seconds=0.5,
        open_seconds=2.5,
        bytes_up=3,
        bytes_down=4,
        closed_by="caller",
        close_reason="frontend closed",
    )


def test_texts_of_peers_cannot_forge_a_line(tmp_path: Path) -> None:
    """Whatever a peer sends is inside one JSON string on one line, and of bounded length."""
    path = tmp_path / "audit"
    trail = AuditTrail(str(path), "s")
    history = DialHistory(lambda: 0.0)
    history.on_ended = trail.write
    evil = '"}\n{"id": 1, "x": "\r\x85\u2028\x1b[2J\udcff\x00'
    record = history.start(1, "unix", "grpc", evil * 100, 0.0)
    record.try_agent(evil, "default")
    history.failed(record, 1.0, REFUSED, "agent to endpoint", evil * 100)
    trail.close()
    text = path.read_bytes()
    assert text.isascii()
    assert text.count(b"\n") == 1
    assert len(text) < 8192
    line = json.loads(text)
    assert (line["agent"], len(line["destination"]), len(line["reason"])) == (evil, 512, 300)
