"""The server's status document: rows of the tables, recent dials, pages, and agreement with the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from bootbridge.metrics import Counter, Gauge
from bootbridge.proxy_server.status_document import core_status
from bootbridge.runtime.sliced_work import run_at_once
from bootbridge.runtime.status_query import DESTINATIONS_MAX, StatusQuery
from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.dial_record import RECENT_DIALS_MAX, RECENT_FAILURES_MAX
from bootbridge.wire import packets as p
from tests.support.sim_script import ConnectCaller, ServerHarness


@contextmanager
def scenario(strategies: Sequence[Strategy] = (Strategy.DEFAULT,)) -> Iterator[ServerHarness]:
    """A server whose peers may receive what they like: these tests look at the document only."""
    with ServerHarness(strategies=strategies) as harness:
        yield harness
        forget_packets(harness)


def forget_packets(harness: ServerHarness) -> None:
    harness.settle()
    for peer in harness.peers:
        peer.received.clear()


def status(harness: ServerHarness, **query: Any) -> dict[str, Any]:
    return run_at_once(core_status(harness.core, StatusQuery(**query)))


def value(number: Counter | Gauge) -> float:
    return next(iter(number.samples()))[2]


def connection(harness: ServerHarness) -> dict[str, Any]:
    """The only row."""
    (row,) = status(harness)["connections"]
    return dict(row)


def waiting_for(harness: ServerHarness) -> str:
    return str(connection(harness)["waitingFor"])


# --- rows


def test_an_agent_is_shown_with_what_it_serves() -> None:
    """Identifiers, the strategies that find it by them, and what it calls itself."""
    with scenario((Strategy.DEST_HOST, Strategy.CIDR, Strategy.DEFAULT)) as harness:
        harness.agent("node-7", identifiers="host=node-7&cidr=10.1.0.0/16&default-route=true")
        harness.agent("plain", go_like=True)
        ours, plain = status(harness)["agents"]
    assert (ours["id"], ours["node"], ours["extension"]) == ("node-7", "node-7", True)
    assert ours["identifiers"] == ["host=node-7", "cidr=10.1.0.0/16", "default-route=true"]
    assert ours["strategies"] == ["destHost", "cidr", "default"]
    assert ours["version"].startswith("bootbridge/")
    assert (plain["node"], plain["strategies"], plain["extension"]) == ("", ["default"], False)
    assert ours["credentialsExpire"] is None


def test_a_connection_is_shown_from_its_dial_to_its_close() -> None:
    """Each state says what it waits for."""
    with scenario() as harness:
        agent = harness.agent("a")
        caller = harness.connect_caller().connect("10.0.0.1:80")
        assert (connection(harness)["state"], waiting_for(harness)) == ("dialling", "agent to answer")
        harness.accept(agent, 1)
        row = connection(harness)
        assert (row["state"], row["waitingFor"]) == ("open", "first bytes")
        assert (row["destination"], row["agent"], row["strategy"]) == ("10.0.0.1:80", "a", "default")
        assert row["protocol"] == "http-connect"
        caller.send(b"four")
        agent.send(p.Data(1, b"nine bytes"))
        row = connection(harness)
        assert (row["bytesUp"], row["bytesDown"], row["waitingFor"]) == (4, 10, "")
        harness.after(1)
        caller.end()
        assert (connection(harness)["state"], waiting_for(harness)) == ("upload ended", "endpoint to close")
        caller.end(gone=True)
        assert (connection(harness)["state"], waiting_for(harness)) == ("closing", "close")
        agent.send(p.CloseResponse("", 1))
        assert status(harness)["connections"] == []


def test_a_slow_reader_is_named() -> None:
    """The caller, the agent, or behind our own agent's credit the endpoint."""
    with scenario() as harness:
        agent = harness.agent("a")
        caller = harness.connect_route(agent)
        caller.port.stalled = True
        agent.send(p.Data(1, b"x" * 1000))
        harness.after(5)
        assert (connection(harness)["queuedDown"], waiting_for(harness)) == (1000, "caller to read")


def test_an_endpoint_that_does_not_read_is_named() -> None:
    """Our own agent grants credit as its endpoint reads: used-up credit is the endpoint's fault."""
    with scenario() as harness:
        agent = harness.agent("a")
        caller = harness.connect_route(agent)
        for _ in range(40):
            if not caller.port.paused:
                caller.send(b"x" * 64 * 1024)
        assert waiting_for(harness) == "endpoint to read"
        assert connection(harness)["queuedUp"] == value(harness.metrics.queued_bytes.labels("to_agent")) > 0


def test_a_direct_connection_has_no_agent() -> None:
    with scenario((Strategy.DIRECT,)) as harness:
        caller = harness.connect_caller().connect("192.0.2.7:80")
        assert waiting_for(harness) == "endpoint to answer"
        (dial,) = harness.dials.requested
        endpoint = dial.succeed()
        caller.send(b"up")
        endpoint.handler.on_bytes(memoryview(b"down!"))
        row = connection(harness)
    assert (row["agent"], row["strategy"]) == ("", "direct")
    assert (row["bytesUp"], row["bytesDown"]) == (2, 5)


# --- dials


def test_recent_dials_have_outcome_hop_and_reason() -> None:
    """The newest first; a failure is in both lists, a success in one."""
    with scenario() as harness:
        harness.connect_caller().connect("10.0.0.1:1")
        agent = harness.agent("a")
        harness.connect_route(agent, address="10.0.0.1:2")
        refused = harness.connect_caller().connect("10.0.0.1:3")
        dial = agent.expect_one(p.DialRequest)
        harness.after(0.25)
        agent.send(p.DialResponse("connection refused", 0, dial.random))
        refused.expect_status(502)
        harness.connect_caller().connect("10.0.0.1:4").end(gone=True)
        found = status(harness)
    rows = [(row["destination"], row["outcome"], row["hop"], row["reason"]) for row in found["recentDials"]]
    assert rows == [
        ("10.0.0.1:4", "cancelled", "", "cancelled by the caller"),
        ("10.0.0.1:3", "refused", "agent to endpoint", "connection refused"),
        ("10.0.0.1:2", "established", "", ""),
        ("10.0.0.1:1", "no agent", "server: no agent", "default: no agent is connected"),
    ]
    assert [row["destination"] for row in found["recentFailures"]] == [
        "10.0.0.1:4",
        "10.0.0.1:3",
        "10.0.0.1:1",
    ]
    assert found["recentDials"][1]["connectSeconds"] == 0.25
    assert found["recentDials"][1]["triedAgents"] == ["a"]
    (row,) = found["agents"]
    assert (row["dialsSucceeded"], row["dialsFailed"]) == (1, 1)


def test_a_retried_dial_names_every_agent_that_was_tried() -> None:
    with scenario() as harness:
        first = harness.agent("first")
        caller = harness.connect_caller().connect()
        first.expect_one(p.DialRequest)
        second = harness.agent("second")
        first.disconnect()
        harness.accept(second, 1)
        caller.expect_status(200)
        row = status(harness)["recentDials"][0]
        assert (row["agent"], row["triedAgents"]) == ("second", ["first", "second"])
        assert status(harness)["dials"]["retried"] == 1


def test_the_lists_are_bounded() -> None:
    """Successes do not displace failures, and a peer's long text is cut."""
    with scenario() as harness:
        for number in range(RECENT_FAILURES_MAX + 10):
            harness.connect_caller().connect(f"10.0.0.2:{number + 1}")
        agent = harness.agent("a")
        harness.connect_caller().connect()
        agent.send(p.DialResponse("x" * 100_000, 0, agent.expect_one(p.DialRequest).random))
        for number in range(RECENT_DIALS_MAX + 10):
            harness.connect_route(agent, number + 1, f"10.0.0.1:{number + 1}")
        found = status(harness)
    assert len(found["recentDials"]) == RECENT_DIALS_MAX
    assert {row["outcome"] for row in found["recentDials"]} == {"established"}
    assert len(found["recentFailures"]) == RECENT_FAILURES_MAX
    assert len(found["recentFailures"][0]["reason"]) == 300
    assert len(found["destinations"]) == DESTINATIONS_MAX


def test_destinations_count_connections_and_recent_dials() -> None:
    with scenario() as harness:
        agent = harness.agent("a")
        callers = [harness.connect_route(agent, number, "10.0.0.1:80") for number in (1, 2, 3)]
        callers[0].end(gone=True)
        agent.send(p.CloseResponse("", 1))
        forget_packets(harness)
        harness.connect_caller().connect("10.0.0.1:80")
        agent.send(p.DialResponse("refused", 0, agent.expect_one(p.DialRequest).random))
        assert status(harness)["destinations"] == [
            {
                "destination": "10.0.0.1:80",
                "agent": "a",
                "connections": 2,
                "recentDials": 4,
                "recentFailures": 1,
            }
        ]


# --- pages


def many(harness: ServerHarness) -> list[ConnectCaller]:
    """Three agents with four connections each; the second one of each agent has the most bytes."""
    callers = []
    for name in ("alpha", "beta", "gamma"):
        agent = harness.agent(name, identifiers=f"host={name}.example")
        for number in range(1, 5):
            callers.append(harness.connect_route(agent, number, f"{name}.example:{number}"))
            agent.send(p.Data(number, b"x" * (1000 if number == 2 else number)))
    return callers


def test_pages_bound_the_rows_and_totals_stay_complete() -> None:
    with scenario((Strategy.DEST_HOST,)) as harness:
        many(harness)
        found = status(harness, agents_offset=1, agents_limit=1, connections_offset=10, connections_limit=5)
        assert [row["id"] for row in found["agents"]] == ["beta"]
        assert [row["destination"] for row in found["connections"]] == ["gamma.example:3", "gamma.example:4"]
        assert (found["agentsTotal"], found["connectionsTotal"], found["routes"]) == (3, 12, 12)
        assert (found["agentsMatched"], found["connectionsMatched"]) == (3, 12)


def test_a_filter_selects_rows_by_a_part_of_their_text() -> None:
    with scenario((Strategy.DEST_HOST,)) as harness:
        many(harness)
        found = status(harness, filter="beta")
        assert [row["id"] for row in found["agents"]] == ["beta"]
        assert {row["agent"] for row in found["connections"]} == {"beta"}
        assert (found["agentsMatched"], found["connectionsMatched"]) == (1, 4)
        assert (found["agentsTotal"], found["connectionsTotal"]) == (3, 12)


@pytest.mark.parametrize(
    ("sort", "first"),
    [("age", "alpha.example:1"), ("bytes", "alpha.example:2"), ("queued", "gamma.example:3")],
)
def test_connections_are_sorted_before_they_are_paged(sort: str, first: str) -> None:
    with scenario((Strategy.DEST_HOST,)) as harness:
        callers = many(harness)
        harness.after(5)
        callers[10].port.stalled = True
        gamma = next(peer for peer in harness.peers if peer.name == "gamma")
        gamma.send(p.Data(3, b"queued"))
        (row,) = status(harness, sort=sort, connections_limit=1)["connections"]
        assert row["destination"] == first


def test_rows_are_built_for_the_page_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a page does not grow with the number of connections, except for counting and sorting."""
    built = []
    original = core_status.__globals__["_connection_row"]
    monkeypatch.setitem(
        core_status.__globals__, "_connection_row", lambda *given: built.append(given) or original(*given)
    )
    with scenario((Strategy.DEST_HOST,)) as harness:
        many(harness)
        status(harness, connections_limit=2)
    assert len(built) == 2


# --- agreement


def test_the_document_agrees_with_the_metrics() -> None:
    """Promise 8: bytes, dials and queues, in total and summed over agents and connections."""
    with scenario((Strategy.DEST_HOST,)) as harness:
        m = harness.metrics
        harness.connect_caller().connect("nobody:80")
        agents = [
            harness.agent("a", identifiers="host=a"),
            harness.agent("b", go_like=True, identifiers="host=b"),
        ]
        callers = [harness.connect_route(agent, 1, f"{agent.name}:80") for agent in agents]
        for caller, size in zip(callers, (100, 2000), strict=True):
            caller.send(b"u" * size)
        for agent in agents:
            agent.send(p.Data(1, b"d" * 333))
        found = status(harness)
        for key, names in (
            ("agents", ("bytesToAgent", "bytesFromAgent")),
            ("connections", ("bytesUp", "bytesDown")),
        ):
            assert [sum(row[name] for row in found[key]) for name in names] == [2100, 666]
        assert found["bytes"] == {
            "toAgent": value(m.transferred_bytes_total.labels("to_agent")),
            "toFrontend": value(m.transferred_bytes_total.labels("to_frontend")),
        }
        assert found["bytes"] == {"toAgent": 2100, "toFrontend": 666}
        callers[0].end(gone=True)
        agents[0].send(p.CloseResponse("", 1))
        agents[1].send(p.CloseResponse("", 1))
        found = status(harness)
        assert sum(row["bytesToAgent"] for row in found["agents"]) == 2100
        assert found["dials"]["succeeded"] == m.dial_duration_seconds.count == 2
        assert found["dials"]["failed"] == {
            labels[0]: child.value for labels, child in m.dial_failure_count.items()
        }
        assert found["dials"]["failed"]["no_agent"] == 1


def test_uncommon_data_is_counted_as_all_other() -> None:
    """A peer may encode DATA with its fields in another order: the bytes count the same."""
    with scenario() as harness:
        agent = harness.agent("a")
        harness.connect_route(agent)
        (stream,) = harness.core.agent_registry
        stream.on_packet(p.Data(1, b"seven77"))
        assert value(harness.metrics.transferred_bytes_total.labels("to_frontend")) == 7
        assert connection(harness)["bytesDown"] == 7


def test_overlaps_are_those_of_the_agents_that_are_connected_now() -> None:
    """They are computed once for each change of the registry."""
    with scenario() as harness:
        harness.agent("a", identifiers="cidr=10.0.0.0/8")
        assert status(harness)["overlappingIdentifiers"] == []
        other = harness.agent("b", identifiers="cidr=10.1.0.0/16")
        assert {row["agent"] for row in status(harness)["overlappingIdentifiers"]} == {"a", "b"}
        harness.core.agent_registry.withdraw(harness.stream_of(other))
        assert status(harness)["overlappingIdentifiers"] == [
            {"identifier": "cidr=10.1.0.0/16", "agent": "b", "other": "a"}
        ]
        other.disconnect()
        assert status(harness)["overlappingIdentifiers"] == []
