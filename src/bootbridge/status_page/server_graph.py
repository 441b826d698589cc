"""The path as proxy-server sees it: callers, server, agents, destinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from bootbridge.runtime.sliced_work import Steps
from bootbridge.status_page import units
from bootbridge.status_page.destinations import DrawnDestination, most_urgent
from bootbridge.status_page.document import Document, number, part, rows, text, texts
from bootbridge.status_page.layout import BAD, GOOD, NEUTRAL, WARNING
from bootbridge.status_page.path_drawing import Edge, Graph, Node, urgency
from bootbridge.status_page.problems import recent_failures
from bootbridge.status_page.stalls import Rates, stalled_by_agent, stalled_of

# More would not be readable; the tables have them all.
AGENTS_DRAWN, DESTINATIONS_DRAWN = 8, 10
DIRECT = "direct"
GHOST = "ghost"

AgentKey = Callable[[Document, str], Hashable]


def server_graph(status: Document, rates: Rates, key: AgentKey) -> Steps[Graph]:
    """Problems are drawn first where there is no room for all."""
    failures = recent_failures(status)
    agents = rows(status, "agents")
    failed_by_agent = Counter(text(row, "agent") for row in failures if text(row, "agent"))
    yield
    waiting = stalled_by_agent(status, rates)
    yield
    ranks = []
    for place, agent in enumerate(agents):
        kind = urgency(_agent_kind(agent, failed_by_agent, waiting))
        transferred = number(agent, "bytesToAgent") + number(agent, "bytesFromAgent")
        ranks.append((kind, -number(agent, "routes"), -transferred, place))
        yield
    places = {place for *_, place in sorted(ranks)[:AGENTS_DRAWN]}
    # In the order of the table, not of urgency: nodes must not jump.
    drawn = sorted((agents[place] for place in places), key=lambda agent: text(agent, "id"))
    yield
    others = [agent for place, agent in enumerate(agents) if place not in places]
    yield
    right = [_agent_node(agent, rates, key, failed_by_agent, waiting) for agent in drawn]
    index = {text(agent, "id"): position for position, agent in enumerate(drawn)}
    everywhere = int(number(status, "agentsTotal") or len(agents))
    if everywhere > len(drawn):
        index["\0rest"] = len(right)
        rest = yield from _rest_of_agents(everywhere - len(drawn), others, rates, key)
        right.append(rest)
    if not everywhere:
        failing = Edge(kind=BAD, failure="no agent")
        right.append(Node("No agent connected", "dials fail until one connects", GHOST, failing))
    yield
    destinations, left_out = most_urgent(status, rates, failures, DESTINATIONS_DRAWN)
    yield
    if any(not each.agent for each in destinations) and DIRECT in texts(status, "strategies"):
        index[""] = len(right)
        right.append(Node("direct", "dialled by this server", edge=Edge(note="strategy direct")))
    elsewhere = index.get("\0rest", 0)
    if drawn and "\0rest" not in index and any(each.agent not in index for each in destinations):
        # Not behind an agent that has nothing to do with it.
        elsewhere = len(right)
        right.append(Node("no connected agent", "none was found, or it has left", GHOST))
    behind = _destination_nodes(destinations, left_out, index, elsewhere)
    return Graph(
        hub=_server_node(status),
        left=[_callers(status, rates, failures)],
        right=right,
        behind=behind,
        headings=("API server", "Server", "Agents", "Destinations"),
        summary=_summary(status, everywhere, len(destinations) + left_out, len(failures)),
    )


def _summary(status: Document, agents: int, destinations: int, failed: int) -> str:
    return (
        f"Path of connections: API server, this server, {agents} agents, {destinations} destinations; "
        f"{units.integer(number(status, 'routes'))} open connections, {failed} failed dials"
    )


def _server_node(status: Document) -> Node:
    kind = GOOD if status.get("ready") else WARNING if status.get("stopping") else BAD
    opened = units.integer(number(status, "routes"))
    return Node(
        "proxy-server", f"{opened} open, {units.integer(number(status, 'pendingDials'))} pending", kind
    )


def _callers(status: Document, rates: Rates, failures: list[Document]) -> Node:
    frontends = part(status, "frontends")
    callers = number(frontends, "httpConnect") + number(frontends, "grpc")
    edge = Edge(
        up=rates.get(("bytes", "toAgent"), 0.0),
        down=rates.get(("bytes", "toFrontend"), 0.0),
        failure=f"{len(failures)} failed" if failures else "",
        kind=BAD if failures else NEUTRAL,
    )
    return Node("callers", f"{units.integer(callers)} connected", GOOD if callers else NEUTRAL, edge)


def _agent_kind(agent: Document, failed: Counter[str], waiting: Counter[str]) -> str:
    if failed[text(agent, "id")] or agent.get("silent"):
        return BAD
    held = stalled_of(agent, waiting)
    return WARNING if held or agent.get("draining") or agent.get("retirementReason") else GOOD


def _agent_node(
    agent: Document, rates: Rates, key: AgentKey, failed: Counter[str], waiting: Counter[str]
) -> Node:
    name = text(agent, "id")
    kind = _agent_kind(agent, failed, waiting)
    held = stalled_of(agent, waiting)
    state = "draining" if agent.get("draining") else "silent" if agent.get("silent") else ""
    opened = f"{units.integer(number(agent, 'routes'))} open"
    where = text(agent, "node") or text(agent, "address")
    problems = ((failed[name], "failed"), (held, "stalled"))
    failure = ", ".join(f"{units.integer(count)} {what}" for count, what in problems if count)
    edge = Edge(
        up=rates.get(key(agent, "bytesToAgent"), 0.0),
        down=rates.get(key(agent, "bytesFromAgent"), 0.0),
        failure=failure,
        kind=NEUTRAL if kind == GOOD else kind,
    )
    return Node(name, " · ".join(each for each in (opened, state, where) if each), kind, edge, link="#agents")


def _rest_of_agents(left_out: int, others: list[Document], rates: Rates, key: AgentKey) -> Steps[Node]:
    up = down = opened = 0.0
    for agent in others:
        up += rates.get(key(agent, "bytesToAgent"), 0.0)
        down += rates.get(key(agent, "bytesFromAgent"), 0.0)
        opened += number(agent, "routes")
        yield
    title, detail = f"{units.integer(left_out)} more agents", f"{units.integer(opened)} open"
    return Node(title, detail, edge=Edge(up, down), link="#agents")


def _destination_nodes(
    found: list[DrawnDestination], left_out: int, index: dict[str, int], elsewhere: int
) -> list[Node]:
    nodes = [each.node(index.get(each.agent, elsewhere)) for each in found]
    nodes.sort(key=lambda node: (node.parent, node.title))  # few edges cross
    if left_out:
        more = f"{left_out} more destinations"
        nodes.append(Node(more, parent=max((node.parent for node in nodes), default=0), link="#connections"))
    return nodes
