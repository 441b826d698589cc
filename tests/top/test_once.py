"""One sample as plain text and as JSON."""

from __future__ import annotations

import json

from bootbridge.top.once import coloured_text, json_text, plain_text
from tests.top.documents import HOSTILE, agent, agent_document, history, server_document

SOURCE = "http://127.0.0.1:8095"


def test_plain_text_has_everything_uncut_in_ascii_lines() -> None:
    long = "agent-" + "x" * 300
    rows = {"agents": [agent(1, id=long), agent(2, id=HOSTILE)]}
    shown = plain_text(history(server_document() | rows), SOURCE)
    assert long in shown
    assert shown.isascii()
    assert all(line == line.rstrip() and line.isprintable() for line in shown.splitlines())
    for expected in (
        "+ ready  3 agents  5 connections",
        "Agents (2 of 3)",
        "Connections (5)",
        "Failures (1)",
    ):
        assert expected in shown
    assert "agent to endpoint: connection refused" in shown


def test_plain_text_of_an_idle_server_names_what_is_missing() -> None:
    empty = server_document(agents=0, connections=0, recentDials=[], recentFailures=[])
    shown = plain_text(history(empty), SOURCE)
    for expected in ("no agent connected", "no open connections", "no dials yet", "no failed dials"):
        assert expected in shown


def test_plain_text_of_an_agent() -> None:
    shown = plain_text(history(agent_document(), agent_document()), SOURCE)
    assert "Servers (1)" in shown
    assert "1 failed: timeout 1" in shown


def test_a_terminal_gets_lines_of_its_width() -> None:
    shown = coloured_text(history(server_document()), SOURCE, 60)
    assert "\x1b[" not in plain_text(history(server_document()), SOURCE)
    assert len(shown.splitlines()) == len(plain_text(history(server_document()), SOURCE).splitlines())


def test_json_has_rates_totals_and_the_programs_own_status() -> None:
    second = server_document(bytes={"toAgent": 2000, "toFrontend": 2000}, version=HOSTILE)
    text = json_text(history(server_document(), second), SOURCE)
    assert text.isascii()
    document = json.loads(text)
    assert document["rates"]["bytesUpPerSecond"] == 1000.0
    assert document["dials"] == {"succeeded": 10, "failedByHop": {"agent to endpoint": 2}}
    assert (document["page"], document["agents"], document["ready"]) == ("/status", 3, True)
    assert document["status"]["version"] == HOSTILE
