"""The document of the server's `/status`, built from the core's tables on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import attrgetter

from bootbridge.ports.close_states import State
from bootbridge.runtime.sliced_work import Steps, chunks
from bootbridge.runtime.status_query import Document, StatusQuery, busiest, first_rows, timestamp, total
from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.agent_stream import AgentStream
from bootbridge.tunnel.dial import Dial, DirectDial
from bootbridge.tunnel.dial_record import DialRecord
from bootbridge.tunnel.identifiers import AgentIdentifiers
from bootbridge.tunnel.proxy_core import ProxyCore
from bootbridge.tunnel.route import AgentRoute, DirectRoute

Connection = AgentRoute | DirectRoute | Dial | DirectDial


def core_status(core: ProxyCore, query: StatusQuery) -> Steps[Document]:
    """Returns what the core knows. Rows are built for the requested pages only.

    All counters, and which agents and connections there are, are of one moment. Their states, queues and rows
    may be some milliseconds younger: the work pauses between them.
    """
    now = core.timers.now()
    registered, connections = list(core.agent_registry), _connections(core)
    numbers: Document = {
        "serverID": core.server_id,
        "serverCount": core.server_count(),
        "ready": core.ready,
        "stopping": core.stopping,
        "strategies": [str(strategy) for strategy in core.strategies],
        "frontends": {"httpConnect": len(core.connect_frontends), "grpc": len(core.grpc_frontends)},
        "pendingDials": core.dial_count,
        **_counters(core),
    }
    recent, failures = list(reversed(core.dial_history.recent)), list(reversed(core.dial_history.failures))
    yield
    overlapping = core.overlapping_identifiers()
    yield
    numbers["routes"] = yield from total(_is_open(each) for each in connections)
    queued_up = yield from total(agent.queued_up for agent in registered)
    queued_down = yield from total(agent.queued_down for agent in registered)
    numbers["queuedBytes"] = {"toAgent": queued_up, "toFrontend": queued_down}
    agents = [agent for agent in registered if _matches_agent(agent, query.filter)]
    agent_rows = []
    for agent in agents[query.agents_offset : query.agents_offset + query.agents_limit]:
        agent_rows.append(_agent_row(agent, core.strategies, now))
        yield
    matching = yield from _matching(connections, query.filter)
    shown = yield from first_rows(
        matching, _SORT_KEYS[query.sort], query.connections_offset, query.connections_limit
    )
    connection_rows = []
    for connection in shown:
        connection_rows.append(_connection_row(connection, now))
        yield
    destinations = yield from _destinations(connections, recent, failures)
    yield
    return {
        **numbers,
        "agentsTotal": len(registered),
        "agentsMatched": len(agents),
        "agents": agent_rows,
        "connectionsTotal": len(connections),
        "connectionsMatched": len(matching),
        "connections": connection_rows,
        "destinations": destinations,
        "recentDials": [_dial_row(record) for record in recent],
        "recentFailures": [_dial_row(record) for record in failures],
        "overlappingIdentifiers": overlapping,
    }


def _counters(core: ProxyCore) -> Document:
    """The counters that `/metrics` has too."""
    m = core.metrics
    return {
        "bytes": {
            "toAgent": m.transferred_bytes_total.labels("to_agent").value,
            "toFrontend": m.transferred_bytes_total.labels("to_frontend").value,
        },
        "dials": {
            "succeeded": m.dial_duration_seconds.count,
            "failed": {labels[0]: child.value for labels, child in m.dial_failure_count.items()},
            "retried": m.dial_retries_total.value,
        },
        "closedConnections": {labels[0]: child.value for labels, child in m.closed_connections_total.items()},
    }


# --- agents


def _matches_agent(agent: AgentStream, text: str) -> bool:
    return not text or text in agent.agent_id or text in agent.address or text in _node(agent)


def _agent_row(agent: AgentStream, strategies: tuple[Strategy, ...], now: float) -> Document:
    return {
        "id": agent.agent_id,
        "address": agent.address,
        "node": _node(agent),
        "identifiers": _texts(agent.identifiers),
        "strategies": [] if agent.retired else [str(each) for each in strategies if _serves(agent, each)],
        "connectedSeconds": round(now - agent.connected_at, 3),
        "draining": agent.draining,
        "silent": agent.silent,
        "retirementReason": agent.retirement_reason,
        "extension": bool(agent.extension),
        "version": agent.version,
        "routes": len(agent.routes),
        "pendingDials": len(agent.dials),
        "dialsSucceeded": agent.dials_succeeded,
        "dialsFailed": agent.dials_failed,
        "bytesToAgent": agent.bytes_to_agent,
        "bytesFromAgent": agent.bytes_from_agent,
        "queuedBytes": agent.queued_up,
        "stalledConnections": agent.stalled_connections,
        "credentialsExpire": timestamp(min((each.expires for each in agent.credentials), default=_NEVER)),
        "ignoredIdentifiers": len(agent.ignored_identifiers),
    }


_NEVER = float("inf")


def _node(agent: AgentStream) -> str:
    """The node that its token proves; else the first name that it advertises, as our DaemonSets do."""
    proved = next((each.node for each in agent.credentials if each.node), "")
    return proved or next(iter(agent.identifiers.host), "")


def _texts(identifiers: AgentIdentifiers) -> list[str]:
    kinds = (
        ("host", identifiers.host),
        ("ipv4", identifiers.ipv4),
        ("ipv6", identifiers.ipv6),
        ("cidr", identifiers.cidr),
        ("default-route", ("true",) if identifiers.default_route else ()),
    )
    return [f"{kind}={value}" for kind, values in kinds for value in values]


def _serves(agent: AgentStream, strategy: Strategy) -> bool:
    match strategy:
        case Strategy.DEFAULT:
            return True
        case Strategy.DEST_HOST:
            return bool(agent.identifiers.host or agent.identifiers.ipv4 or agent.identifiers.ipv6)
        case Strategy.CIDR:
            return bool(agent.identifiers.cidr)
        case Strategy.DEFAULT_ROUTE:
            return agent.identifiers.default_route
        case Strategy.DIRECT:
            return False


# --- connections


def _connections(core: ProxyCore) -> list[Connection]:
    """Returns open and closing connections, and pending dials."""
    found: list[Connection] = [*core.direct_routes, *core.direct_dials, *core.early_dials]
    for agent in core.agent_registry:
        found.extend(agent.routes.values())
        found.extend(agent.dials.values())
    return found


def _is_open(connection: Connection) -> bool:
    return isinstance(connection, DirectRoute) or (
        isinstance(connection, AgentRoute) and not connection.closing
    )


def _matching(connections: list[Connection], text: str) -> Steps[list[Connection]]:
    if not text:
        return connections
    found: list[Connection] = []
    for chunk in chunks(connections):
        found.extend(each for each in chunk if _matches(each.record, text))
        yield
    return found


def _matches(record: DialRecord, text: str) -> bool:
    return text in record.destination or text in record.agent or text in record.caller


def _by_bytes(connection: Connection) -> int:
    if isinstance(connection, Dial | DirectDial):
        return 0
    return -connection.bytes_up - connection.bytes_down


def _by_queue(connection: Connection) -> int:
    if isinstance(connection, Dial | DirectDial):
        return 0
    return -connection.queued_up - connection.queued_down


_SORT_KEYS: dict[str, Callable[[Connection], int]] = {
    "age": attrgetter("record.id"),  # the oldest first
    "bytes": _by_bytes,
    "queued": _by_queue,
}


def _connection_row(connection: Connection, now: float) -> Document:
    record = connection.record
    row: Document = {
        "id": record.id,
        "destination": record.destination,
        "agent": record.agent,
        "caller": record.caller,
        "strategy": record.strategy,
        "protocol": record.protocol,
        "ageSeconds": round(now - record.started_at, 3),
    }
    if isinstance(connection, Dial | DirectDial):
        numbers: Document = {"bytesUp": 0, "bytesDown": 0, "queuedUp": 0, "queuedDown": 0}
        state = "dialling"
    else:
        numbers = {
            "bytesUp": connection.bytes_up,
            "bytesDown": connection.bytes_down,
            "queuedUp": connection.queued_up,
            "queuedDown": connection.queued_down,
        }
        state = connection.state.value
    return {**row, **numbers, "state": state, "waitingFor": _waiting_for(connection)}


def _waiting_for(connection: Connection) -> str:
    if isinstance(connection, Dial):
        return "agent to answer" if connection.agent else "agent to connect"
    if isinstance(connection, DirectDial):
        return "endpoint to answer"
    if connection.state is State.CLOSING or connection.state is State.BOTH_ENDED:
        return "close"
    if connection.queued_down:
        return "caller to read"
    if connection.queued_up:
        # Our own agent grants credit as the endpoint reads; a Go agent only stops reading.
        stops_at_agent = isinstance(connection, AgentRoute) and connection.send_queue.credit > 0
        return "agent to read" if stops_at_agent else "endpoint to read"
    if not (connection.bytes_up or connection.bytes_down):
        return "first bytes"
    return _HALF_CLOSED.get(connection.state, "")


_HALF_CLOSED = {State.UPLOAD_ENDED: "endpoint to close", State.DOWNLOAD_ENDED: "caller to close"}


# --- destinations and dials


_RECORD = attrgetter("record")
_PAIR = attrgetter("destination", "agent")


def _destinations(
    connections: list[Connection], recent: list[DialRecord], failed: list[DialRecord]
) -> Steps[list[Document]]:
    """Returns the busiest pairs of destination and agent; pending dials count as connections."""
    # Not in Python for each connection: this is the most expensive part of a document of 10,000.
    open_now: Counter[tuple[str, str]] = Counter()
    for chunk in chunks(connections):
        open_now.update(map(_PAIR, map(_RECORD, chunk)))
        yield
    found = busiest(open_now, map(_PAIR, recent), map(_PAIR, failed))
    return [{"destination": destination, "agent": agent, **counts} for (destination, agent), counts in found]


def _dial_row(record: DialRecord) -> Document:
    return {
        "id": record.id,
        "time": timestamp(record.time),
        "caller": record.caller,
        "destination": record.destination,
        "strategy": record.strategy,
        "agent": record.agent,
        "triedAgents": list(record.tried_agents),
        "outcome": record.outcome,
        "hop": record.hop,
        "reason": record.reason,
        "connectSeconds": round(record.connect_seconds, 6),
    }
