"""`/status` becomes a snapshot, whatever a peer or another version has put into it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.top.snapshot import Snapshot
from bootbridge.top.status_document import parse_status
from tests.top.documents import (
    HOSTILE,
    agent,
    agent_document,
    connection,
    failed_dial,
    server_document,
    snapshot,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def texts(value: object) -> list[str]:
    """Returns all texts of a snapshot, except the document as it was served."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Snapshot):
        return [text for key, each in vars(value).items() if key != "document" for text in texts(each)]
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in texts(key) + texts(each)]
    if isinstance(value, tuple):
        return [text for each in value for text in texts(each)]
    return texts(vars(value)) if hasattr(value, "__dict__") else []


def test_a_server_is_read() -> None:
    found = snapshot(server_document())
    assert (found.program, found.ready, found.peers_total, found.connections_total) == (
        "proxy-server",
        True,
        3,
        5,
    )
    assert (found.bytes_up, found.bytes_down) == (1000, 2000)
    assert found.dials_failed == {"agent to endpoint": 2}
    assert found.peers[0].node == "worker-1"
    assert found.peers[0].credentials_seconds == 12 * 3600
    assert found.recent_failures[0].age_seconds == 2.0
    assert not found.warnings


def test_an_agent_is_read() -> None:
    found = snapshot(agent_document())
    assert (found.program, found.peer_name, found.peers_total) == ("proxy-agent", "server", 1)
    # Up is towards the pod in both programs.
    assert (found.bytes_up, found.bytes_down) == (300, 700)
    assert found.peers[0].state == "connected"


def test_a_server_that_is_not_connected_shows_why() -> None:
    server = {
        "address": "192.0.2.1:8091",
        "state": "waiting",
        "lastError": "connection refused",
        "nextAttemptSeconds": 3,
    }
    found = snapshot(agent_document(servers=[server])).peers[0]
    assert (found.state, found.healthy) == ("waiting: connection refused, next attempt in 3.0 s", False)
    assert found.id == "192.0.2.1:8091"


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"draining": True}, "draining"),
        ({"silent": True}, "silent"),
        ({"retirementReason": "certificate expired"}, "retiring: certificate expired"),
    ],
)
def test_an_agent_in_trouble_is_not_healthy(fields: dict[str, object], state: str) -> None:
    found = snapshot(server_document(agents=0) | {"agents": [agent(1, **fields)]}).peers[0]
    assert (found.state, found.healthy) == (state, False)


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"agentsTotal": 0, "agents": []}, "no agent connected"),
        ({"stopping": True}, "the server is stopping"),
        ({"tls": {"certificateExpires": "2026-11-18T03:30:00Z"}}, "certificate expires in 30 min"),
        (
            {"tls": {"certificateExpires": "2026-11-18T02:30:00Z"}},
            "certificate expired at 2026-11-18T02:30:00Z",
        ),
        ({"tls": {"reloadError": "no such file"}}, "certificate not reloaded: no such file"),
        ({"limits": [{"name": "dials", "reachedTotal": 3}]}, "limit reached 3 times: dials"),
    ],
)
def test_what_needs_attention_is_a_warning(fields: dict[str, object], warning: str) -> None:
    assert snapshot(server_document() | fields).warnings == (warning,)


def test_no_text_of_a_peer_controls_the_terminal() -> None:
    document = server_document(
        version=HOSTILE,
        serverID=HOSTILE,
        mode=HOSTILE,
        dials={"failed": {HOSTILE: 1}},
        agents=1,
        limits=[{"name": HOSTILE, "reachedTotal": 1}],
        tls={"reloadError": HOSTILE},
        recentFailures=[
            failed_dial(1, destination=HOSTILE, hop=HOSTILE, reason=HOSTILE, triedAgents=[HOSTILE])
        ],
    )
    names = ("id", "address", "node", "retirementReason", "version")
    document["agents"] = [agent(1, identifiers=[HOSTILE], **dict.fromkeys(names, HOSTILE))]
    names = ("id", "destination", "agent", "caller", "strategy", "protocol", "state", "waitingFor")
    document["connections"] = [connection(1, **dict.fromkeys(names, HOSTILE))]
    found = texts(snapshot(document))
    assert sum("owned" in text for text in found) > 15
    assert [text for text in found if not text.isprintable()] == []


def test_a_very_long_text_is_cut() -> None:
    found = snapshot(server_document(serverID="x" * 1_000_000))
    assert len(found.identity) == 500


@pytest.mark.parametrize("document", [None, [], "text", {}, {"program": "join-service"}, {"program": ["x"]}])
def test_another_document_is_not_a_status(document: object) -> None:
    assert parse_status(document, taken=0.0) is None


@pytest.mark.parametrize(
    "value",
    [None, True, -1, 1e400, float("nan"), 10**400, "12", [1], {"a": 1}, "2026-99-99", "0001-01-01T00:00:00Z"],
)
def test_a_wrong_value_in_any_field_is_tolerated(value: object) -> None:
    """Each field of the document and of its rows in turn, and all at once."""
    for field in server_document():
        if field != "program":
            assert parse_status(server_document() | {field: value}, taken=0.0) is not None
    rows: dict[str, Any] = {
        "agents": [dict.fromkeys(agent(1), value)],
        "connections": [dict.fromkeys(connection(1), value), value],
        "recentDials": [dict.fromkeys(failed_dial(1), value)],
    }
    assert parse_status(server_document() | rows, taken=0.0) is not None


@given(JSON, JSON, JSON)
def test_any_json_is_tolerated(one: object, two: object, three: object) -> None:
    document = {"program": "proxy-server", "agents": [one], "connections": two, "dials": three, "tls": one}
    assert parse_status(document, taken=0.0) is not None
