"""The page of proxy-server."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from bootbridge.runtime.sliced_work import Steps
from bootbridge.status_page import units
from bootbridge.status_page.document import Document, number, part, rows, text, texts
from bootbridge.status_page.figures import byte_totals, counter, dial_figures, figure, transfer
from bootbridge.status_page.html import Child, Markup, tag
from bootbridge.status_page.layout import (
    BAD,
    GOOD,
    WARNING,
    Column,
    Section,
    count,
    empty,
    lines,
    machine,
    mark,
    page,
    pager,
    peer_text,
    table,
    transferred,
    uptime,
)
from bootbridge.status_page.path_drawing import drawing
from bootbridge.status_page.problems import (
    TLS_PARTS,
    TOKEN_WARNING_SECONDS,
    Problem,
    expiry,
    problem_list,
    shared_problems,
)
from bootbridge.status_page.server_graph import server_graph
from bootbridge.status_page.stalls import Rates, connection_totals, stalled_by_agent, stalled_of
from bootbridge.status_page.tables import shared_sections
from bootbridge.status_page.view import AGENTS_MAX, PERIOD_SECONDS, ROWS_PER_PAGE, View

OVERLAPS_SHOWN = 20


def totals(status: Document) -> Iterator[tuple[Hashable, float]]:
    """Yields the counters whose rates the page shows."""
    yield from byte_totals(status)
    for agent in rows(status, "agents"):
        yield agent_key(agent, "bytesToAgent"), number(agent, "bytesToAgent")
        yield agent_key(agent, "bytesFromAgent"), number(agent, "bytesFromAgent")
    yield from connection_totals(status)


def agent_key(agent: Document, counter: str) -> Hashable:
    # The address too: an agent that reconnects starts again at zero, and two may have one id.
    return ("agent", text(agent, "id"), text(agent, "address"), counter)


def sections(status: Document, view: View, rates: Rates) -> Steps[list[Section]]:
    problems = list(_server_problems(status))
    problems += yield from _agent_problems(rows(status, "agents"))
    problems.extend(shared_problems(status, rates))
    yield
    overview = (problem_list(problems), _figures(status, rates))
    yield
    graph = yield from server_graph(status, rates, agent_key)
    yield
    path = yield from drawing(graph)
    agents = yield from _agents(status, view, rates)
    shared = yield from shared_sections(status, view, rates, peer="agent", certificates_of=TLS_PARTS)
    found = [
        Section("overview", "Overview", overview),
        Section("path", "Path", path),
        Section("agents", "Agents", agents, units.integer(number(status, "agentsTotal"))),
        *shared,
    ]
    if overlaps := rows(status, "overlappingIdentifiers"):
        listed = yield from _overlaps(overlaps)
        found.append(Section("overlaps", "Overlapping identifiers", listed, str(len(overlaps))))
    return found


def render(
    status: Document, view: View, done: Sequence[Section], seconds: float = PERIOD_SECONDS
) -> Steps[str]:
    """Returns the page of these sections, which updates itself every so many seconds."""
    return page(status, view, state=_state(status), facts=_facts(status), sections=done, seconds=seconds)


def _state(status: Document) -> Markup:
    if status.get("stopping"):
        return mark(WARNING, "stopping")
    return mark(GOOD, "ready") if status.get("ready") else mark(BAD, "not ready")


def _facts(status: Document) -> Child:
    facts = [
        f"version {text(status, 'version')}" + (" (compiled)" if status.get("compiled") else ""),
        uptime(status),
        f"server {text(status, 'serverID')}",
        f"mode {text(status, 'mode')}" if status.get("mode") else "",
        f"frontend {text(status, 'frontend')}" if status.get("frontend") else "",
        f"agent port {text(status, 'agentPort')}" if status.get("agentPort") else "",
        f"strategies {', '.join(texts(status, 'strategies'))}",
    ]
    return (tag("span", fact) for fact in facts if fact)


def _figures(status: Document, rates: Rates) -> Markup:
    frontends = part(status, "frontends")
    kinds = (("httpConnect", "HTTP CONNECT"), ("grpc", "gRPC"))
    found = [f"{units.integer(number(frontends, key))} {title}" for key, title in kinds if frontends.get(key)]
    return tag(
        "dl",
        figure("Agents", counter(status, "agentsTotal"), bad=not number(status, "agentsTotal")),
        figure("Open connections", counter(status, "routes"), ", ".join(found)),
        transfer("To agents", "toAgent", status, rates),
        transfer("To callers", "toFrontend", status, rates),
        *dial_figures(status),
        class_="figures",
    )


def _server_problems(status: Document) -> Iterator[Problem]:
    if status.get("stopping"):
        yield Problem(WARNING, "The server is stopping: it accepts no new connections.", "overview")
    elif not number(status, "agentsTotal"):
        yield Problem(BAD, "No agent is connected: dials fail.", "agents")
    elif not status.get("ready"):
        yield Problem(BAD, "No strategy finds an agent: dials fail.", "agents")
    if rows(status, "overlappingIdentifiers"):
        yield Problem(WARNING, "several agents advertise the same destination", "overlaps")


# Values of an agent's row that are true or above zero only if it has a problem.
_AGENT_PROBLEMS = (
    ("draining", "draining"),
    ("silent", "not answering dials"),
    ("retirementReason", "to be replaced, because their credentials ended"),
    ("ignoredIdentifiers", "with identifiers that were ignored"),
)


def _agent_problems(agents: list[Document]) -> Steps[list[Problem]]:
    problems = []
    for key, title in _AGENT_PROBLEMS:
        yield
        found = [agent for agent in agents if agent.get(key)]
        if found:
            names = peer_text(text(found[0], "id")) if len(found) == 1 else None
            label = "agent" if len(found) == 1 else "agents"
            shown = (f"{len(found)} {label} {title}", ": " if names else None, names)
            problems.append(Problem(WARNING, shown, "agents"))
    yield
    return problems


# --- agents

_COLUMNS = [
    Column("Agent", order="id"),
    Column("State", order="connected", help="Sorted: the newest first"),
    Column("Program"),
    Column("Serves"),
    Column("Connections", True, "connections"),
    Column("Dials", True, "failures", "Established and failed; sorted by failed"),
    Column("To agent", True, "rate", "Rate and total; sorted by both directions together"),
    Column("From agent", True),
    Column("Queued", True, "queue"),
    Column("Certificate or token"),
]


def _agents(status: Document, view: View, rates: Rates) -> Steps[Child]:
    found = rows(status, "agents")
    if not found and view.filter:
        return empty("No agent matches.", tag("a", "Show all", href=view.link("agents", filter="")))
    if not found:
        port = text(status, "agentPort")
        flags = "--proxy-server-host=ADDRESS" + (f" --proxy-server-port={port}" if port else "")
        return empty(
            "No agent is connected.",
            "Start proxy-agent with ",
            tag("code", flags),
            ". If one runs, its log has ",
            tag("code", "server not reached"),
            " with the reason, and this server's ",
            tag("code", "agent refused"),
            ".",
        )
    counted = number(status, "agentsMatched" if view.filter else "agentsTotal")
    yield
    ordered = yield from _ordered(found, view.agents_sort, rates)
    yield
    start = view.agents_offset % AGENTS_MAX
    shown = ordered[start : start + ROWS_PER_PAGE]
    now = text(status, "time")
    waiting = stalled_by_agent(status, rates)
    yield
    listed = yield from table(
        "Connected agents",
        _COLUMNS,
        (_agent(agent, rates, now, stalled_of(agent, waiting)) for agent in shown),
        view=view,
        parameter="agents_sort",
        anchor="agents",
    )
    return (listed, pager(view, "agents", view.agents_offset, len(shown), counted, "agents"))


def _ordered(agents: list[Document], order: str, rates: Rates) -> Steps[list[Document]]:
    if order == "id":
        return sorted(agents, key=lambda agent: text(agent, "id"))
    if order == "rate":
        flows = []
        for place, agent in enumerate(agents):
            keys = (agent_key(agent, "bytesToAgent"), agent_key(agent, "bytesFromAgent"))
            flows.append((-sum(rates.get(key, 0.0) for key in keys), place))
            yield
        return [agents[place] for _, place in sorted(flows)]
    if order == "connected":
        return sorted(agents, key=lambda agent: number(agent, "connectedSeconds"))
    key = {"connections": "routes", "failures": "dialsFailed", "queue": "queuedBytes"}[order]
    return sorted(agents, key=lambda agent: number(agent, key), reverse=True)


def _agent(agent: Document, rates: Rates, now: str, held: int) -> tuple[str, list[Child]]:
    marks = list(_agent_marks(agent))
    node, version = text(agent, "node"), text(agent, "version")
    queued = number(agent, "queuedBytes")
    pending = number(agent, "pendingDials")
    failed = number(agent, "dialsFailed")
    ignored = number(agent, "ignoredIdentifiers")
    expires = text(agent, "credentialsExpire")
    kind, note = expiry(expires, now, TOKEN_WARNING_SECONDS)
    extension = bool(agent.get("extension"))
    cells: list[Child] = [
        lines(
            peer_text(text(agent, "id")),
            peer_text(text(agent, "address")) if agent.get("address") else None,
            ("node ", peer_text(node)) if node else None,
        ),
        lines(
            marks or mark(GOOD, "connected"),
            f"for {units.duration(number(agent, 'connectedSeconds'))}",
            peer_text(text(agent, "retirementReason")) if agent.get("retirementReason") else None,
        ),
        lines(peer_text(version or units.NONE), "with extension" if extension else "plain protocol"),
        lines(
            peer_text(", ".join(texts(agent, "strategies")) or units.NONE),
            *(peer_text(each) for each in texts(agent, "identifiers")[:4]),
            f"{len(texts(agent, 'identifiers')) - 4} more" if len(texts(agent, "identifiers")) > 4 else None,
            mark(WARNING, f"{units.integer(ignored)} ignored") if ignored else None,
        ),
        lines(
            count(number(agent, "routes"), name="routes"),
            f"{units.integer(pending)} pending" if pending else None,
        ),
        lines(
            count(number(agent, "dialsSucceeded"), name="dialsSucceeded"),
            tag("strong", machine(failed, f"{units.integer(failed)} failed", "dialsFailed"), class_=BAD)
            if failed
            else None,
        ),
        transferred(
            number(agent, "bytesToAgent"), rates.get(agent_key(agent, "bytesToAgent")), "bytesToAgent"
        ),
        transferred(
            number(agent, "bytesFromAgent"),
            rates.get(agent_key(agent, "bytesFromAgent")),
            "bytesFromAgent",
        ),
        lines(
            tag("span", units.amount(queued), class_=None if queued else "zero"),
            tag("strong", f"{units.integer(held)} stalled", class_=WARNING) if held else None,
        ),
        mark(kind, note.removeprefix("expires "), expires)
        if expires
        else tag("span", units.NONE, class_="zero"),
    ]
    return (WARNING if marks or held else ""), cells


def _agent_marks(agent: Document) -> Iterator[Markup]:
    if agent.get("retirementReason"):
        yield mark(WARNING, "retired", text(agent, "retirementReason"))
    if agent.get("draining"):
        yield mark(WARNING, "draining")
    if agent.get("silent"):
        yield mark(BAD, "silent", "It left a dial unanswered")


def _overlaps(overlaps: list[Document]) -> Steps[Child]:
    columns = [Column("Identifier"), Column("Agent"), Column("Other agent")]
    cells = (
        ("", [peer_text(text(row, key)) for key in ("identifier", "agent", "other")])
        for row in overlaps[:OVERLAPS_SHOWN]
    )
    listed = yield from table("Destinations that two agents advertise", columns, cells)
    if len(overlaps) <= OVERLAPS_SHOWN:
        return listed
    return (listed, tag("p", f"the first {OVERLAPS_SHOWN} of {len(overlaps)}", class_="pager"))
