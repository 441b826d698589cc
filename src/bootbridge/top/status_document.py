"""Parses `/status` of a server or agent. Tolerant: missing or wrong fields become empty values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from bootbridge.common.terminal.figures import duration
from bootbridge.top.snapshot import AGENT, SERVER, ConnectionRow, DialRow, PeerRow, Snapshot
from bootbridge.top.text import printable

# Which hop a reason of `dial_failure_count` belongs to; the terms are those of the log and of `recent_dials`.
HOPS = {
    "no_agent": "server: no agent",
    "error_response": "agent to endpoint",
    "backend_close": "server to agent",
    "backend_dial_timeout": "agent did not answer",
    "frontend_close": "caller closed",
    "send_rsp": "server to caller",
    "unrecognized_response": "unrecognized response",
}
CERTIFICATE_WARNING_SECONDS = 3600.0
WARNINGS_MAX = 5
_Json = Mapping[str, object]


def parse_status(document: object, *, taken: float) -> Snapshot | None:
    """Returns None if it is not the status of a proxy-server or proxy-agent."""
    if not isinstance(document, dict) or document.get("program") not in (SERVER, AGENT):
        return None
    now = _time(document.get("time")) or datetime.now(UTC)
    is_server = document["program"] == SERVER
    peers = tuple(
        _peer(each, is_server, now) for each in _objects(document, "agents" if is_server else "servers")
    )
    dials = _object(document, "dials")
    up, down = _bytes(document, peers, is_server)
    return Snapshot(
        taken=taken,
        program=SERVER if is_server else AGENT,
        version=_text(document, "version"),
        identity=_text(document, "server_id" if is_server else "agent_id"),
        ready=document.get("ready") is True,
        stopping=document.get("stopping") is True or document.get("draining") is True,
        uptime_seconds=_optional(document.get("uptime_seconds")),
        facts=_facts(document),
        pending_dials=_count(document.get("pending_dials")),
        dials_succeeded=_count(dials.get("succeeded")),
        dials_failed=failures_by_hop(_object(dials, "failed").items()),
        bytes_up=up,
        bytes_down=down,
        queued_bytes=_queued(document, peers),
        peers_total=max(_count(document.get("agents_total")), len(peers)),
        peers=peers,
        connections_total=max(
            _count(document.get("connections_total")), len(_objects(document, "connections"))
        ),
        connections=tuple(map(_connection, _objects(document, "connections"))),
        recent_dials=tuple(_dial(each, now) for each in _objects(document, "recent_dials")),
        recent_failures=tuple(_dial(each, now) for each in _objects(document, "recent_failures")),
        warnings=_warnings(document, now, is_server),
        document=document,
    )


def failures_by_hop(reasons: Iterable[tuple[str, object]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for reason, count in reasons:
        if number := _count(count):
            hop = HOPS.get(reason) or printable(reason, 60).replace("_", " ")
            found[hop] = found.get(hop, 0) + number
    return found


def _facts(document: _Json) -> tuple[str, ...]:
    facts = [" ".join(filter(None, (_text(document, "mode"), _text(document, "frontend"))))]
    if strategies := ", ".join(_texts(document.get("strategies"))):
        facts.append(f"strategies {strategies}")
    if identifiers := ", ".join(_texts(document.get("identifiers"))):
        facts.append(f"identifiers {identifiers}")
    return tuple(filter(None, facts))


def _bytes(document: _Json, peers: tuple[PeerRow, ...], is_server: bool) -> tuple[int, int]:
    totals = _object(document, "bytes")
    names = ("to_agent", "to_frontend") if is_server else ("to_endpoint", "to_server")
    if totals:
        up, down = (_count(totals.get(name)) for name in names)
        return up, down
    return sum(peer.bytes_up for peer in peers), sum(peer.bytes_down for peer in peers)


def _queued(document: _Json, peers: tuple[PeerRow, ...]) -> int:
    totals = _object(document, "queued_bytes")
    return sum(map(_count, totals.values())) or sum(peer.queued_bytes for peer in peers)


def _peer(each: _Json, is_server: bool, now: datetime) -> PeerRow:
    state, healthy = _agent_state(each) if is_server else _server_state(each)
    up, down = (
        ("bytes_to_agent", "bytes_from_agent") if is_server else ("bytes_from_server", "bytes_to_server")
    )
    return PeerRow(
        id=_text(each, "id" if is_server else "server_id") or _text(each, "address"),
        # An IPv4 address on a socket for both families.
        address=_text(each, "address").removeprefix("::ffff:"),
        node=_text(each, "node"),
        state=state,
        healthy=healthy,
        connected_seconds=_optional(each.get("connected_seconds")),
        connections=_count(each.get("routes")),
        pending_dials=_count(each.get("pending_dials")),
        dials_succeeded=_count(each.get("dials_succeeded")),
        dials_failed=_count(each.get("dials_failed")),
        bytes_up=_count(each.get(up)),
        bytes_down=_count(each.get(down)),
        queued_bytes=_count(each.get("queued_bytes")),
        stalled_connections=_count(each.get("stalled_connections")),
        credentials_seconds=_seconds_until(each.get("credentials_expire"), now),
        version=_text(each, "version") or ("Go" if each.get("extension") is False else ""),
        identifiers=_texts(each.get("identifiers")),
    )


def _agent_state(each: _Json) -> tuple[str, bool]:
    if reason := _text(each, "retirement_reason"):
        return f"retiring: {reason}", False
    if each.get("silent") is True:
        return "silent", False
    return ("draining", False) if each.get("draining") is True else ("connected", True)


def _server_state(each: _Json) -> tuple[str, bool]:
    state, error = _text(each, "state") or "connected", _text(each, "last_error")
    seconds = _optional(each.get("next_attempt_seconds"))
    again = f", next attempt in {duration(seconds)}" if seconds is not None else ""
    return (
        (state, True) if state == "connected" else (f"{state}{f': {error}' if error else ''}{again}", False)
    )


def _connection(each: _Json) -> ConnectionRow:
    return ConnectionRow(
        id=printable(each.get("id"), 40),
        destination=_text(each, "destination"),
        peer=_text(each, "agent") or _text(each, "server") or "direct",
        caller=_text(each, "caller"),
        protocol=_text(each, "protocol"),
        strategy=_text(each, "strategy"),
        age_seconds=_optional(each.get("age_seconds")),
        bytes_up=_count(each.get("bytes_up")),
        bytes_down=_count(each.get("bytes_down")),
        queued_up=_count(each.get("queued_up")),
        queued_down=_count(each.get("queued_down")),
        state=_text(each, "state"),
        waiting_for=_text(each, "waiting_for"),
    )


def _dial(each: _Json, now: datetime) -> DialRow:
    at = _time(each.get("time"))
    return DialRow(
        age_seconds=(now - at).total_seconds() if at else None,
        time=_text(each, "time"),
        destination=_text(each, "destination"),
        caller=_text(each, "caller"),
        strategy=_text(each, "strategy"),
        peer=_text(each, "agent") or _text(each, "server"),
        tried=_texts(each.get("tried_agents")),
        outcome=_text(each, "outcome"),
        hop=_text(each, "hop"),
        reason=_text(each, "reason"),
        connect_seconds=_optional(each.get("connect_seconds")),
    )


def _warnings(document: _Json, now: datetime, is_server: bool) -> tuple[str, ...]:
    found = []
    if document.get("stopping") is True:
        found.append("the server is stopping")
    elif document.get("draining") is True:
        found.append("the agent is draining")
    if is_server and document.get("agents_total") == 0:
        found.append("no agent connected")
    for field, title in (("tls", "certificate"), ("frontend_tls", "frontend certificate")):
        found += _certificate_warnings(_object(document, field), title, now)
    for limit in _objects(document, "limits"):
        if reached := _count(limit.get("reached_total")):
            found.append(f"limit reached {reached:,} times: {_text(limit, 'name')}")
    if isinstance(overlapping := document.get("overlapping_identifiers"), list) and overlapping:
        found.append(f"{len(overlapping)} overlapping identifiers")
    return tuple(dict.fromkeys(found))[:WARNINGS_MAX]


def _certificate_warnings(tls: _Json, title: str, now: datetime) -> Iterator[str]:
    expiry = _time(tls.get("certificate_expires"))
    left = (expiry - now).total_seconds() if expiry else CERTIFICATE_WARNING_SECONDS
    if expiry and left < CERTIFICATE_WARNING_SECONDS:
        expired = f"expired at {expiry:%Y-%m-%dT%H:%M:%SZ}"
        yield f"{title} {expired if left <= 0 else f'expires in {duration(left)}'}"
    if error := _text(tls, "reload_error"):
        yield f"{title} not reloaded: {error}"


# --- fields


def _object(document: _Json, field: str) -> _Json:
    value = document.get(field)
    return value if isinstance(value, dict) else {}


def _objects(document: _Json, field: str) -> list[_Json]:
    value = document.get(field)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(document: _Json, field: str) -> str:
    value = document.get(field)
    return printable(value) if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return (
        tuple(printable(each) for each in value if isinstance(each, str)) if isinstance(value, list) else ()
    )


def _optional(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _count(value: object) -> int:
    number = _optional(value)
    return max(int(number), 0) if number is not None else 0


def _time(value: object) -> datetime | None:
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    if at.tzinfo is None:
        return at.replace(tzinfo=UTC)
    # Near the first and last year a conversion to UTC overflows.
    return (
        at if timedelta(0) <= abs(at - datetime(2000, 1, 1, tzinfo=UTC)) < timedelta(days=400_000) else None
    )


def _seconds_until(value: object, now: datetime) -> float | None:
    at = _time(value)
    return (at - now).total_seconds() if at else None
