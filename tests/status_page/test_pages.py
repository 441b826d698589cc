"""The pages show what the status document says, and what needs attention first."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bootbridge.runtime.sliced_work import run_at_once
from bootbridge.status_page import agent_page, server_page
from bootbridge.status_page.view import View
from tests.status_page import documents
from tests.status_page.test_html import HOSTILE, Parsed


def server(document: dict[str, Any], rates: dict[Any, float] | None = None, **view: Any) -> str:
    return render(server_page, document, View(**view), rates)


def render(page: Any, document: dict[str, Any], view: View, rates: dict[Any, float] | None = None) -> str:
    done = run_at_once(page.sections(document, view, rates or {}))
    rendered: str = run_at_once(page.render(document, view, done))
    return rendered


def text_of(page: str) -> str:
    """The text of a page, with one space for every gap."""
    return re.sub(r"\s+", " ", Parsed(re.sub("(?=<)(?!</?(?:bdi|a|data|time))", " ", page)).text)


def problems(page: str) -> list[str]:
    found = re.search(r'<ul class="problems">(.*?)</ul>', page)
    return [text_of(item) for item in re.findall("<li>(.*?)</li>", found[1])] if found else []


def test_every_fact_of_an_agent_is_shown() -> None:
    facts = documents.agent(
        1,
        identifiers=["host=node-7", "cidr=10.9.0.0/24"],
        strategies=["destHost"],
        node="the-node",
        address="192.0.2.77:4711",
        version="grpc-go/1.65",
        extension=False,
        queuedBytes=2048,
        stalledConnections=3,
        dialsFailed=5,
        dialsSucceeded=44,
        pendingDials=2,
        connectedSeconds=7500.0,
        retirementReason="certificate expired",
        silent=True,
        draining=True,
        ignoredIdentifiers=6,
        credentialsExpire=documents.at(-3 * 86400),
    )
    rates = {server_page.agent_key(facts, "bytesToAgent"): 4096.0}
    shown = text_of(server(documents.server(agents=[facts], agentsTotal=1), rates))
    for fact in (
        "agent-1", "192.0.2.77:4711", "node the-node", "host=node-7", "cidr=10.9.0.0/24", "destHost",
        "grpc-go/1.65", "plain protocol", "2.00 KiB", "3 stalled", "5 failed", "44", "2 pending", "for 2h 5m",
        "certificate expired", "silent", "draining", "6 ignored", "in 3d 0h", "4.00 KiB/s",
    ):  # fmt: skip
        assert fact in shown, fact


def test_a_dial_shows_outcome_hop_and_reason() -> None:
    row = documents.failed_dial(1, agent="b", triedAgents=["a", "b"])
    shown = text_of(server(documents.server(recentFailures=[row])))
    assert "refused" in shown
    assert "dial tcp 10.128.0.9:8443: connection refused agent to endpoint" in shown
    assert "also tried: a" in shown


def test_a_healthy_server_has_no_problem() -> None:
    page = server(documents.server())
    assert problems(page) == []
    assert "No problem found." in text_of(page)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"agents": [], "agentsTotal": 0, "ready": False}, "No agent is connected"),
        ({"ready": False}, "No strategy finds an agent"),
        ({"stopping": True, "ready": False}, "stopping"),
        ({"recentFailures": [documents.failed_dial(1)]}, "1 dial failed in the last minute"),
        ({"agents": [documents.agent(1, draining=True)]}, "1 agent draining: agent-1"),
        ({"agents": [documents.agent(1, stalledConnections=2)]}, "2 stalled connections"),
        ({"tls": {"certificateExpires": documents.at(-3600)}}, "certificate expires in 1h 0m"),
        ({"tls": {"certificateExpires": documents.at(60)}}, "certificate expired 1m 0s ago"),
        ({"tls": {"reloadError": "bad key"}}, "could not be reloaded: bad key"),
        (
            {"limits": [{"name": "x", "current": 1, "maximum": 5, "reachedTotal": 2}]},
            "limit reached 2 times since the start: x",
        ),
        ({"limits": [{"name": "x", "current": 5, "maximum": 5, "reachedTotal": 0}]}, "limit reached now: x"),
        ({"overlappingIdentifiers": [{"identifier": "host=a"}]}, "several agents advertise"),
    ],
)
def test_problems_are_listed(changes: dict[str, Any], expected: str) -> None:
    found = problems(server(documents.server(**changes)))
    assert len(found) == 1
    assert expected in found[0]


def test_an_old_failure_is_listed_but_is_not_a_problem() -> None:
    page = server(documents.server(recentFailures=[documents.failed_dial(120)]))
    assert problems(page) == []
    assert "connection refused" in text_of(page)


def test_a_connection_is_stalled_only_if_nothing_moves() -> None:
    """A fast transfer has a queue all the time."""
    row = documents.connection(1, queuedDown=70_000, waitingFor="caller to read")
    document = documents.server(connections=[row], connectionsTotal=1)
    key = ("connection", 1, "", "bytesDown")
    assert problems(server(document, {key: 1000.0})) == []
    stalled = server(document, {key: 0.0})
    assert ["1 stalled connection" in each for each in problems(stalled)] == [True]
    assert "stalled waits for caller to read" in text_of(stalled)


def test_the_drawing_shows_failures_and_stalls_of_one_agent() -> None:
    failed = documents.failed_dial(1, agent="agent-1")
    page = server(
        documents.server(agents=[documents.agent(1, stalledConnections=2)], recentFailures=[failed])
    )
    assert "1 failed, 2 stalled" in text_of(page)


def test_drawing_and_table_count_the_same_stalls_of_an_agent() -> None:
    """Also one that the server does not count yet, because it waits for less than 5 s."""
    row = documents.connection(1, agent="agent-1", queuedDown=70_000, waitingFor="caller to read")
    document = documents.server(agents=[documents.agent(1)], connections=[row], connectionsTotal=1)
    page = server(document, {("connection", 1, "", "bytesDown"): 0.0})
    table = page[page.index('id="agents"') : page.index('id="connections"')]
    assert "1 stalled" in text_of(page[: page.index('id="agents"')])
    assert "1 stalled" in text_of(table)


def destination(number: int, agent: str, **changes: Any) -> dict[str, Any]:
    return {
        "destination": f"10.128.0.{number}:8443",
        "agent": agent,
        "connections": 1,
        "recentDials": 5,
        "recentFailures": 0,
    } | changes


def drawn(page: str, kind: str = "wide") -> str:
    """The text of one of the two drawings."""
    start = page.index(f'class="{kind}"')
    end = page.index('class="narrow"') if kind == "wide" else page.index("<figcaption")
    return text_of(page[start:end].partition(">")[2])


@pytest.mark.parametrize("kind", ["wide", "narrow"])
def test_the_drawing_shows_the_rates_of_a_destination(kind: str) -> None:
    """The sum of its connections, on both drawings."""
    rows = [documents.connection(n, destination="10.128.0.1:8443", agent="agent-1") for n in (7, 8)]
    document = documents.server(
        connections=rows, connectionsTotal=2, destinations=[destination(1, "agent-1", connections=2)]
    )
    rates = {
        ("connection", row["id"], "", direction): value
        for row in rows
        for direction, value in (("bytesUp", 1024.0), ("bytesDown", 4096.0))
    }
    shown = drawn(server(document, rates), kind)
    assert "→ 2.00 KiB/s" in shown
    assert "← 8.00 KiB/s" in shown
    assert "10.128.0.1:8443 2 open" in shown


def test_the_drawing_shows_no_rate_of_a_destination_of_which_connections_are_not_listed() -> None:
    """A part of them would be taken for the whole."""
    row = documents.connection(7, destination="10.128.0.1:8443", agent="agent-1")
    document = documents.server(
        connections=[row], connectionsTotal=2, destinations=[destination(1, "agent-1", connections=2)]
    )
    shown = drawn(server(document, {("connection", 7, "", "bytesUp"): 1024.0}))
    assert "1.00 KiB/s" not in shown
    assert "10.128.0.1:8443 2 open" in shown


def test_the_drawing_shows_why_a_destination_failed_last() -> None:
    failures = [
        documents.failed_dial(1, destination="10.128.0.1:8443", reason="dial tcp: connect: no route to host"),
        documents.failed_dial(2, destination="10.128.0.1:8443", reason="an earlier one"),
    ]
    document = documents.server(
        recentFailures=failures, destinations=[destination(1, "agent-1", connections=0)]
    )
    shown = drawn(server(document))
    assert "10.128.0.1:8443 no route to host" in shown
    assert "2 failed" in shown


@pytest.mark.parametrize("page", [server_page, agent_page])
def test_the_drawing_marks_the_destination_of_a_stalled_connection(page: Any) -> None:
    """On the edge that leads to it."""
    stalled = documents.connection(
        1, destination="10.128.0.1:8443", agent="agent-1", queuedUp=9, waitingFor="endpoint to read"
    )
    make = documents.server if page is server_page else documents.proxy_agent
    agent = "agent-1"
    if page is agent_page:
        agent = stalled["agent"] = ""
    document = make(connections=[stalled], connectionsTotal=1, destinations=[destination(1, agent)])
    shown = drawn(render(page, document, View(), {("connection", 1, "", "bytesUp"): 0.0}))
    edge = shown[: shown.rindex("10.128.0.1:8443")]
    assert edge.count("1 stalled") == (2 if page is server_page else 1)


def test_an_agent_that_has_left_lends_its_destinations_to_no_other() -> None:
    """They are drawn apart; so are those for which no agent was found."""
    document = documents.server(
        2, destinations=[destination(1, "gone", connections=0), destination(2, "", connections=0)]
    )
    assert drawn(server(document)).count("no connected agent") == 2  # tooltip and title
    at_home = documents.server(2, destinations=[destination(1, "agent-1")])
    assert "no connected agent" not in drawn(server(at_home))


def test_the_agents_drawing_counts_connections_that_the_table_does_not_list() -> None:
    """A filter, or a second page, changes the table only."""
    document = documents.proxy_agent(destinations=[destination(1, "", connections=80)])
    assert "10.128.0.1:8443 80 open" in drawn(render(agent_page, document, View(filter="nothing")))


@pytest.mark.parametrize("agent_id", ["\x1b" * 60, "\u202e" * 47, "\x97\x9f" * 23, "x" * 250])
def test_a_text_that_does_not_print_is_measured_as_it_is_shown(agent_id: str) -> None:
    """Its codes are several times as long: they neither leave a node of the drawing nor widen a table."""
    page = server(documents.server(1, agents=[documents.agent(1, id=agent_id)]))
    titles = re.findall(r'<text [^>]*class="title">([^<]*)', page)
    assert max(map(len, titles)) <= 35
    assert re.search(r'<bdi class="long">(\\x1b|\\u202e|\\x97|x)', page[page.index('id="agents"') :])


def test_an_empty_server_says_what_to_do() -> None:
    shown = text_of(server(documents.server(0, 0, recentDials=[])))
    assert "--proxy-server-host=ADDRESS --proxy-server-port=8091" in shown
    assert "No open connection." in shown
    assert "No dial yet." in shown


def test_a_document_without_any_key_renders() -> None:
    """An older program or a missing part must not break the page."""
    assert "not ready" in server({"program": "proxy-server"})
    assert "not ready" in render(agent_page, {"program": "proxy-agent"}, View())


def hostile(value: Any) -> Any:
    """The same document with a hostile text in every place that has one."""
    if isinstance(value, dict):
        return {key: item if key in ("program", "time") else hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("page", [server_page, agent_page])
def test_no_text_of_the_document_becomes_html(page: Any) -> None:
    """Whatever peers send, the elements and attributes are those of the same page with harmless texts."""
    make = documents.server if page is server_page else documents.proxy_agent
    document = make(recentFailures=[documents.failed_dial(1)], overlappingIdentifiers=[{"identifier": "a"}])
    rendered = render(page, hostile(document), View(filter=HOSTILE))
    assert HOSTILE not in rendered
    found = Parsed(rendered)
    assert [attributes for name, attributes in found.elements if name == "script"] == [
        [("src", "status.js"), ("defer", None)]
    ]
    names = {name for _, attributes in found.elements for name, _ in attributes}
    assert [name for name in names if name.startswith("on") or name == "style"] == []
    assert HOSTILE in found.text


def test_the_page_refers_to_nothing_outside() -> None:
    """Every reference is relative, and works behind a proxy that adds a prefix."""
    for rendered in (server(documents.server()), render(agent_page, documents.proxy_agent(), View())):
        references = re.findall(r'(?:href|src|action)="([^"]*)"', rendered)
        assert len(references) > 10
        assert [each for each in references if "//" in each or each.startswith("/")] == []


def test_tables_are_readable_by_machines_and_screen_readers() -> None:
    page = server(documents.server(recentFailures=[documents.failed_dial(1)]))
    tables = re.findall("<table>.*?</table>", page)
    assert len(tables) == 6
    for table in tables:
        assert re.match("<table><caption>[^<]+</caption>", table)
        assert 'scope="col"' in table
        assert 'scope="row"' in table
    assert '<data value="123456"' in page


def test_a_thousand_agents_and_ten_thousand_connections_are_paged() -> None:
    """50 rows of each, with the number of all; the drawing names 8 agents and sums up the others."""
    document = documents.server(1000, 10_000)
    page = server(document)
    assert len(re.findall("<tr", page)) < 150
    shown = text_of(page)
    assert "1–50 of 1,000 agents" in shown
    assert "1–50 of 10,000 connections" in shown
    assert "992 more agents" in shown
    assert 'href="?agents_offset=50#agents"' in page
    last = text_of(server(document, agents_offset=950))
    assert "951–1,000 of 1,000 agents" in last
    assert len(page) < 250_000


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("id", "agent-0"),
        ("connections", "agent-6"),
        ("failures", "agent-3"),
        ("rate", "agent-2"),
        ("queue", "agent-4"),
    ],
)
def test_agents_are_sorted_by_a_link_in_the_head_of_a_column(order: str, first: str) -> None:
    document = documents.server(9)
    document["agents"][3]["dialsFailed"] = 7
    document["agents"][4]["queuedBytes"] = 7
    rates = {server_page.agent_key(document["agents"][2], "bytesFromAgent"): 9.0}
    page = server(document, rates, agents_sort=order)
    table = page[page.index("Connected agents") :]
    assert re.findall(r'<th scope="row"><div><bdi>([^<]+)', table)[0] == first
    heads = re.findall(r"<th [^>]*aria-sort[^>]*><a", table)
    assert len(heads) == 2  # agents and connections


def test_a_filter_stays_in_links_and_in_the_form() -> None:
    page = server(documents.server(connectionsMatched=4, agentsMatched=3), filter="10.1&x=<b>")
    assert 'value="10.1&amp;x=&lt;b&gt;"' in page
    assert "?filter=10.1%26x%3D%3Cb%3E&amp;agents_sort=queue#agents" in page


def test_the_agents_page_shows_servers_with_what_failed() -> None:
    document = documents.proxy_agent(ready=False)
    document["servers"][0] |= {
        "state": "waiting",
        "lastError": "connection refused",
        "nextAttemptSeconds": 4.2,
    }
    page = render(agent_page, document, View())
    shown = text_of(page)
    assert "next attempt in 4.2 s" in shown
    assert any("No server is connected" in each for each in problems(page))
    assert any("192.0.2.1:8091: connection refused" in each for each in problems(page))


@pytest.mark.parametrize(
    "query", [{"sort": "x"}, {"agents_offset": "-1"}, {"agents_offset": "9" * 99}, {"refresh": "0.1"}]
)
def test_an_invalid_query_shows_the_default(query: dict[str, str]) -> None:
    assert View.parse(query) == View()
