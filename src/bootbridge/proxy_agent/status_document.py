"""The document of the agent's `/status`, built from the core's tables on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import attrgetter

from bootbridge.ports.close_states import State
from bootbridge.proxy_agent.server_sync import ServerState
from bootbridge.runtime.sliced_work import Steps, chunks
from bootbridge.runtime.status_query import Document, StatusQuery, busiest, first_rows, timestamp, total
from bootbridge.tunnel.agent_core import AgentCore, ServerStream
from bootbridge.tunnel.dial_record import DialRecord
from bootbridge.tunnel.endpoint import Endpoint, EndpointDial

Connection = tuple[ServerStream, Endpoint | EndpointDial]

_DESTINATION = attrgetter("destination")


def core_status(core: AgentCore, query: StatusQuery) -> Steps[Document]:
    """Returns what the core knows, without its servers. Rows are built for the requested page only.

    All counters, and which connections there are, are of one moment. Queues and rows may be some milliseconds
    younger: the work pauses between them.
    """
    now = core.timers.now()
    connections = _connections(core)
    m = core.metrics
    endpoints = [endpoint for stream in core.streams for endpoint in stream.endpoints.values()]
    numbers: Document = {
        "agentID": core.agent_id,
        "draining": core.draining,
        "identifiers": [each for each in core.identifiers.split("&") if each],
        "pendingDials": sum(len(stream.dials) for stream in core.streams),
        "routes": core.endpoint_count,
        "bytes": {
            "toEndpoint": m.transferred_bytes_total.labels("to_endpoint").value,
            "toServer": m.transferred_bytes_total.labels("to_server").value,
        },
        "dials": {
            "succeeded": m.dial_duration_seconds.count,
            "failed": {labels[0]: child.value for labels, child in m.endpoint_dial_failure_total.items()},
        },
        "closedConnections": {labels[0]: child.value for labels, child in m.closed_connections_total.items()},
    }
    recent, failures = list(reversed(core.dial_history.recent)), list(reversed(core.dial_history.failures))
    yield
    queued_up = yield from total(endpoint.queued_up for endpoint in endpoints)
    queued_down = yield from total(endpoint.queued_down for endpoint in endpoints)
    numbers["queuedBytes"] = {"toEndpoint": queued_up, "toServer": queued_down}
    matching: list[Connection] = []
    open_now: Counter[str] = Counter()
    for chunk in chunks(connections):
        open_now.update([each[1].record.destination for each in chunk])
        matching.extend(each for each in chunk if _matches(each[1].record, query.filter))
        yield
    shown = yield from first_rows(
        matching, _SORT_KEYS[query.sort], query.connections_offset, query.connections_limit
    )
    rows = []
    for stream, connection in shown:
        rows.append(_connection_row(stream, connection, now))
        yield
    destinations = busiest(open_now, map(_DESTINATION, recent), map(_DESTINATION, failures))
    return {
        **numbers,
        "connectionsTotal": len(connections),
        "connectionsMatched": len(matching),
        "connections": rows,
        "destinations": [{"destination": name, **counts} for name, counts in destinations],
        "recentDials": [_dial_row(record) for record in recent],
        "recentFailures": [_dial_row(record) for record in failures],
    }


def server_rows(states: list[ServerState]) -> list[Document]:
    """Returns the connected servers, and the addresses that are tried or will be."""
    return [
        {
            "address": each.address,
            "state": each.state,
            **(_NOT_CONNECTED if each.stream is None else _stream_status(each.stream)),
            "lastError": each.last_error,
            "nextAttemptSeconds": each.next_attempt_seconds,
        }
        for each in states
    ]


def _stream_status(stream: ServerStream) -> Document:
    return {
        "serverID": stream.server_id,
        "connectedSeconds": round(stream.timers.now() - stream.connected_at, 3),
        "extension": bool(stream.extension),
        "version": stream.version,
        "routes": len(stream.endpoints),
        "pendingDials": len(stream.dials),
        "bytesToServer": stream.bytes_to_server,
        "bytesFromServer": stream.bytes_from_server,
        "queuedBytes": sum(endpoint.queued_down for endpoint in stream.endpoints.values()),
        "stalledConnections": stream.stalled_connections,
    }


_NOT_CONNECTED: Document = {
    "serverID": "",
    "connectedSeconds": None,
    "extension": None,
    "version": "",
    "routes": 0,
    "pendingDials": 0,
    "bytesToServer": 0,
    "bytesFromServer": 0,
    "queuedBytes": 0,
    "stalledConnections": 0,
}


def _connections(core: AgentCore) -> list[Connection]:
    """Returns open and closing connections, and pending dials."""
    found: list[Connection] = []
    for stream in core.streams:
        found.extend((stream, endpoint) for endpoint in stream.endpoints.values())
        found.extend((stream, dial) for dial in stream.dials.values())
    return found


def _matches(record: DialRecord, text: str) -> bool:
    return not text or text in record.destination or text in record.caller


def _by_bytes(connection: Connection) -> int:
    each = connection[1]
    return 0 if isinstance(each, EndpointDial) else -each.bytes_up - each.bytes_down


def _by_queue(connection: Connection) -> int:
    each = connection[1]
    return 0 if isinstance(each, EndpointDial) else -each.queued_up - each.queued_down


_SORT_KEYS: dict[str, Callable[[Connection], int]] = {
    "age": lambda connection: connection[1].record.id,  # the oldest first
    "bytes": _by_bytes,
    "queued": _by_queue,
}


def _connection_row(stream: ServerStream, connection: Endpoint | EndpointDial, now: float) -> Document:
    record = connection.record
    row: Document = {
        "id": record.id,
        "destination": record.destination,
        "server": stream.server_id,
        "ageSeconds": round(now - record.started_at, 3),
    }
    if isinstance(connection, EndpointDial):
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


def _waiting_for(connection: Endpoint | EndpointDial) -> str:
    if isinstance(connection, EndpointDial):
        return "endpoint to answer"
    if connection.queued_up:
        return "endpoint to read"
    if connection.queued_down:
        # Our own server grants credit as the caller reads; a Go server only stops reading.
        return "caller to read" if connection.send_queue.credit <= 0 else "server to read"
    if connection.state is State.CLOSING:
        return "close"
    if not (connection.bytes_up or connection.bytes_down):
        return "first bytes"
    return _HALF_CLOSED.get(connection.state, "")


_HALF_CLOSED = {State.UPLOAD_ENDED: "endpoint to close", State.DOWNLOAD_ENDED: "caller to close"}


def _dial_row(record: DialRecord) -> Document:
    return {
        "id": record.id,
        "time": timestamp(record.time),
        "server": record.caller,
        "destination": record.destination,
        "outcome": record.outcome,
        "hop": record.hop,
        "reason": record.reason,
        "connectSeconds": round(record.connect_seconds, 6),
    }
