"""The page of proxy-agent."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from bootbridge.runtime.sliced_work import Steps
from bootbridge.status_page import units
from bootbridge.status_page.destinations import most_urgent
from bootbridge.status_page.document import Document, number, rows, text, texts
from bootbridge.status_page.figures import byte_totals, counter, dial_figures, figure, transfer
from bootbridge.status_page.html import Child, Markup, tag
from bootbridge.status_page.layout import (
    BAD,
    GOOD,
    NEUTRAL,
    WARNING,
    Column,
    Section,
    count,
    empty,
    lines,
    mark,
    page,
    peer_text,
    table,
    transferred,
    uptime,
)
from bootbridge.status_page.path_drawing import Edge, Graph, Node, drawing
from bootbridge.status_page.problems import Problem, problem_list, recent_failures, shared_problems
from bootbridge.status_page.stalls import Rates, connection_totals
from bootbridge.status_page.tables import shared_sections
from bootbridge.status_page.view import PERIOD_SECONDS, View

DESTINATIONS_DRAWN = 8
SERVERS_DRAWN = 6
GHOST = "ghost"
DIRECTIONS = ("bytesFromServer", "bytesToServer")
CONNECTED = "connected"


def totals(status: Document) -> Iterator[tuple[Hashable, float]]:
    """Yields the counters whose rates the page shows."""
    yield from byte_totals(status)
    for server in rows(status, "servers"):
        for direction in DIRECTIONS:
            yield _key(server, direction), number(server, direction)
    yield from connection_totals(status)


def _key(server: Document, direction: str) -> Hashable:
    return ("server", text(server, "address"), text(server, "serverID"), direction)


def sections(status: Document, view: View, rates: Rates) -> Steps[list[Section]]:
    problems = problem_list(list(_problems(status, rates)))
    yield
    overview = (problems, _figures(status, rates))
    yield
    graph = agent_graph(status, rates)
    yield
    path = yield from drawing(graph)
    servers = yield from _servers(status, rates)
    used_for = (("tls", "connections to servers"),)
    shared = yield from shared_sections(status, view, rates, peer="server", certificates_of=used_for)
    return [
        Section("overview", "Overview", overview),
        Section("path", "Path", path),
        Section("servers", "Servers", servers, str(len(rows(status, "servers")))),
        *shared,
    ]


def render(
    status: Document, view: View, done: Sequence[Section], seconds: float = PERIOD_SECONDS
) -> Steps[str]:
    """Returns the page of these sections, which updates itself every so many seconds."""
    return page(status, view, state=_state(status), facts=_facts(status), sections=done, seconds=seconds)


def _state(status: Document) -> Markup:
    if status.get("draining"):
        return mark(WARNING, "draining")
    return mark(GOOD, "ready") if status.get("ready") else mark(BAD, "not ready")


def _facts(status: Document) -> Child:
    identifiers = texts(status, "identifiers")
    facts: list[Child] = [
        f"version {text(status, 'version')}" + (" (compiled)" if status.get("compiled") else ""),
        uptime(status),
        ("agent ", peer_text(text(status, "agentID"))),
        f"advertises {', '.join(identifiers)}" if identifiers else "advertises no identifier",
    ]
    return (tag("span", fact) for fact in facts)


def _figures(status: Document, rates: Rates) -> Markup:
    servers = rows(status, "servers")
    connected = sum(text(server, "state") == CONNECTED for server in servers)
    return tag(
        "dl",
        figure("Servers connected", f"{connected} of {len(servers)}", bad=not connected),
        figure("Open connections", counter(status, "routes")),
        transfer("To destinations", "toEndpoint", status, rates),
        transfer("To servers", "toServer", status, rates),
        *dial_figures(status),
        class_="figures",
    )


def _problems(status: Document, rates: Rates) -> Iterator[Problem]:
    servers = rows(status, "servers")
    if status.get("draining"):
        yield Problem(WARNING, "The agent is draining: servers prefer other agents.", "overview")
    if not any(text(server, "state") == CONNECTED for server in servers):
        yield Problem(BAD, "No server is connected: the agent receives no dials.", "servers")
    for server in servers:
        if error := text(server, "lastError"):
            kind = WARNING if text(server, "state") == CONNECTED else BAD
            yield Problem(
                kind, ("server ", peer_text(text(server, "address")), ": ", peer_text(error)), "servers"
            )
    yield from shared_problems(status, rates)


# --- servers

_COLUMNS = [
    Column("Server"),
    Column("State"),
    Column("Program"),
    Column("Connections", True),
    Column("From server", True),
    Column("To server", True),
    Column("Last error"),
]


def _servers(status: Document, rates: Rates) -> Steps[Child]:
    servers = rows(status, "servers")
    if not servers:
        return empty(
            "No server is known.",
            "The agent connects to ",
            tag("code", "--proxy-server-host"),
            " and ",
            tag("code", "--proxy-server-port"),
            ". Its log has ",
            tag("code", "server not reached"),
            " with the reason.",
        )
    return (yield from table("Servers", _COLUMNS, (_server(server, rates) for server in servers)))


def _server(server: Document, rates: Rates) -> tuple[str, list[Child]]:
    state, error = text(server, "state"), text(server, "lastError")
    connected = state == CONNECTED
    next_attempt = server.get("nextAttemptSeconds")
    when = f"for {units.duration(number(server, 'connectedSeconds'))}" if connected else None
    if isinstance(next_attempt, int | float) and not connected:
        when = f"next attempt in {units.duration(max(0.0, next_attempt))}"
    server_id = text(server, "serverID")
    cells: list[Child] = [
        lines(
            peer_text(text(server, "address") or server_id),
            ("id ", peer_text(server_id)) if server_id else None,
        ),
        lines(mark(GOOD if connected else WARNING, state or units.NONE), when),
        lines(
            peer_text(text(server, "version") or units.NONE),
            ("with extension" if server.get("extension") else "plain protocol") if connected else None,
        ),
        count(number(server, "routes")),
        transferred(number(server, "bytesFromServer"), rates.get(_key(server, "bytesFromServer"))),
        transferred(number(server, "bytesToServer"), rates.get(_key(server, "bytesToServer"))),
        peer_text(error) if error else tag("span", units.NONE, class_="zero"),
    ]
    return ("" if connected else BAD if error else WARNING), cells


# --- the path


def agent_graph(status: Document, rates: Rates) -> Graph:
    """Servers, this agent, destinations."""
    servers = rows(status, "servers")
    failures = recent_failures(status)
    left = [_server_node(server, rates) for server in servers[:SERVERS_DRAWN]]
    if len(servers) > SERVERS_DRAWN:
        left.append(Node(f"{len(servers) - SERVERS_DRAWN} more servers", link="#servers"))
    if not left:
        left = [Node("No server", "not connected", GHOST, Edge(kind=BAD, failure="not connected"))]
    destinations, left_out = most_urgent(status, rates, failures, DESTINATIONS_DRAWN)
    right = sorted((each.node() for each in destinations), key=lambda node: node.title)
    if left_out:
        right.append(Node(f"{left_out} more destinations", link="#connections"))
    if not right:
        right = [Node("No open connection", "destinations appear here", GHOST)]
    kind = GOOD if status.get("ready") else WARNING if status.get("draining") else BAD
    count_open = units.integer(number(status, "connectionsTotal"))
    known = len(destinations) + left_out
    return Graph(
        hub=Node(text(status, "agentID") or "proxy-agent", f"{count_open} open", kind),
        left=left,
        right=right,
        behind=[],
        headings=("Servers", "This agent", "Destinations"),
        summary=f"Path of connections: {len(servers)} servers, this agent, {known} destinations; "
        f"{len(failures)} dials failed in the last minute",
    )


def _server_node(server: Document, rates: Rates) -> Node:
    connected = text(server, "state") == CONNECTED
    edge = Edge(
        up=rates.get(_key(server, "bytesFromServer"), 0.0) if connected else None,
        down=rates.get(_key(server, "bytesToServer"), 0.0) if connected else None,
        failure="" if connected else text(server, "state"),
        kind=NEUTRAL if connected else BAD,
    )
    detail = f"{units.integer(number(server, 'routes'))} open" if connected else text(server, "lastError")
    title = text(server, "address") or text(server, "serverID")
    return Node(title, detail, GOOD if connected else BAD, edge, link="#servers")
