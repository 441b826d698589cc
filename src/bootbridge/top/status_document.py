"""Parses `/status` of a server or agent. Tolerant: missing or wrong fields become empty values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from bootbridge.common.terminal.figures import duration
from bootbridge.top.snapshot import (
    AGENT,
    NO_AGENT,
    SERVER,
    CertificateRow,
    ConnectionRow,
    DialRow,
    PeerRow,
    Snapshot,
)
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
    certificates = tuple(_certificates(document))
    dials = _object(document, "dials")
    up, down = _bytes(document, peers, is_server)
    return Snapshot(
        taken=taken,
        program=SERVER if is_server else AGENT,
        version=_text(document, "version"),
        identity=_text(document, "serverID" if is_server else "agentID"),
        ready=document.get("ready") is True,
        stopping=document.get("stopping") is True or document.get("draining") is True,
        uptime_seconds=_optional(document.get("uptimeSeconds")),
        facts=_facts(document),
        frontend=_text(document, "frontend"),
        agent_port=_count(document.get("agentPort")),
        certificates=certificates,
        pending_dials=_count(document.get("pendingDials")),
        dials_succeeded=_count(dials.get("succeeded")),
        dials_failed=failures_by_hop(_object(dials, "failed").items()),
        bytes_up=up,
        bytes_down=down,
        queued_bytes=_queued(document, peers),
        peers_total=max(_count(document.get("agentsTotal")), len(peers)),
        peers=peers,
        connections_total=max(
            _count(document.get("connectionsTotal")), len(_objects(document, "connections"))
        ),
        connections=tuple(map(_connection, _objects(document, "connections"))),
        recent_dials=tuple(_dial(each, now) for each in _objects(document, "recentDials")),
        recent_failures=tuple(_dial(each, now) for each in _objects(document, "recentFailures")),
        warnings=_warnings(document, certificates, now, is_server),
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
    names = ("toAgent", "toFrontend") if is_server else ("toEndpoint", "toServer")
    if totals:
        up, down = (_count(totals.get(name)) for name in names)
        return up, down
    return sum(peer.bytes_up for peer in peers), sum(peer.bytes_down for peer in peers)


def _queued(document: _Json, peers: tuple[PeerRow, ...]) -> int:
    totals = _object(document, "queuedBytes")
    return sum(map(_count, totals.values())) or sum(peer.queued_bytes for peer in peers)


def _peer(each: _Json, is_server: bool, now: datetime) -> PeerRow:
    state, healthy = _agent_state(each) if is_server else _server_state(each)
    up, down = ("bytesToAgent", "bytesFromAgent") if is_server else ("bytesFromServer", "bytesToServer")
    return PeerRow(
        id=_text(each, "id" if is_server else "serverID") or _text(each, "address"),
        # An IPv4 address on a socket for both families.
        address=_text(each, "address").removeprefix("::ffff:"),
        node=_text(each, "node"),
        state=state,
        healthy=healthy,
        connected_seconds=_optional(each.get("connectedSeconds")),
        connections=_count(each.get("routes")),
        pending_dials=_count(each.get("pendingDials")),
        dials_succeeded=_count(each.get("dialsSucceeded")),
        dials_failed=_count(each.get("dialsFailed")),
        bytes_up=_count(each.get(up)),
        bytes_down=_count(each.get(down)),
        queued_bytes=_count(each.get("queuedBytes")),
        stalled_connections=_count(each.get("stalledConnections")),
        credentials_seconds=_seconds_until(each.get("credentialsExpire"), now),
        version=_text(each, "version") or ("Go" if each.get("extension") is False else ""),
        identifiers=_texts(each.get("identifiers")),
    )


def _agent_state(each: _Json) -> tuple[str, bool]:
    if reason := _text(each, "retirementReason"):
        return f"retiring: {reason}", False
    if each.get("silent") is True:
        return "silent", False
    return ("draining", False) if each.get("draining") is True else ("connected", True)


def _server_state(each: _Json) -> tuple[str, bool]:
    state, error = _text(each, "state") or "connected", _text(each, "lastError")
    seconds = _optional(each.get("nextAttemptSeconds"))
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
        age_seconds=_optional(each.get("ageSeconds")),
        bytes_up=_count(each.get("bytesUp")),
        bytes_down=_count(each.get("bytesDown")),
        queued_up=_count(each.get("queuedUp")),
        queued_down=_count(each.get("queuedDown")),
        state=_text(each, "state"),
        waiting_for=_text(each, "waitingFor"),
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
        tried=_texts(each.get("triedAgents")),
        outcome=_text(each, "outcome"),
        hop=_text(each, "hop"),
        reason=_text(each, "reason"),
        connect_seconds=_optional(each.get("connectSeconds")),
    )


def _certificates(document: _Json) -> Iterator[CertificateRow]:
    for field, title in (("tls", "certificate"), ("frontendTLS", "frontend certificate")):
        tls = _object(document, field)
        row = CertificateRow(title, _time(tls.get("certificateExpires")), _text(tls, "reloadError"))
        if row.expires or row.reload_error:
            yield row


def _warnings(
    document: _Json, certificates: Iterable[CertificateRow], now: datetime, is_server: bool
) -> tuple[str, ...]:
    found = []
    if document.get("stopping") is True:
        found.append("the server is stopping")
    elif document.get("draining") is True:
        found.append("the agent is draining")
    if is_server and document.get("agentsTotal") == 0:
        found.append(NO_AGENT)
    for certificate in certificates:
        found += _certificate_warnings(certificate, now)
    for limit in _objects(document, "limits"):
        if reached := _count(limit.get("reachedTotal")):
            found.append(f"limit reached {reached:,} times: {_text(limit, 'name')}")
    if isinstance(overlapping := document.get("overlappingIdentifiers"), list) and overlapping:
        found.append(f"{len(overlapping)} overlapping identifiers")
    return tuple(dict.fromkeys(found))[:WARNINGS_MAX]


def _certificate_warnings(row: CertificateRow, now: datetime) -> Iterator[str]:
    expiry, title = row.expires, row.title
    left = (expiry - now).total_seconds() if expiry else CERTIFICATE_WARNING_SECONDS
    if expiry and left < CERTIFICATE_WARNING_SECONDS:
        expired = f"expired at {expiry:%Y-%m-%dT%H:%M:%SZ}"
        yield f"{title} {expired if left <= 0 else f'expires in {duration(left)}'}"
    if row.reload_error:
        yield f"{title} not reloaded: {row.reload_error}"


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
