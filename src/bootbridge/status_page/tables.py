"""The tables that both pages have: connections, dials, certificates, limits."""

from __future__ import annotations

from collections.abc import Sequence

from bootbridge.runtime.sliced_work import Steps
from bootbridge.status_page import units
from bootbridge.status_page.document import Document, number, part, rows, text, texts
from bootbridge.status_page.html import Child, Markup, markup, tag
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
    moment,
    pager,
    peer_text,
    table,
    transferred,
)
from bootbridge.status_page.problems import expiry
from bootbridge.status_page.stalls import Rates, connection_key, stalled
from bootbridge.status_page.view import View

DIALS_SHOWN = 12
ESTABLISHED, CANCELLED = "established", "cancelled"


def shared_sections(
    status: Document, view: View, rates: Rates, *, peer: str, certificates_of: Sequence[tuple[str, str]]
) -> Steps[list[Section]]:
    """Returns what both pages have; `peer` is `agent` or `server`, where connections lead to or come from."""
    opened = yield from connections(status, view, rates, peer)
    failed = yield from dials(status, "recentFailures", "Dials that failed, newest first", view)
    last = yield from dials(status, "recentDials", "The last dials, newest first", view)
    used = yield from certificates(status, certificates_of)
    bounds = yield from limits(status)
    none_yet = empty("No dial yet.", "A dial appears here when a caller asks for a connection.")
    failures = str(len(rows(status, "recentFailures")) or "")
    return [
        Section("connections", "Connections", opened, units.integer(number(status, "connectionsTotal"))),
        Section("failures", "Failed dials", failed or empty("No dial has failed."), failures),
        Section("recentDials", "Last dials", last or none_yet),
        Section("certificates", "Certificates", used),
        Section("limits", "Limits", bounds),
    ]


# --- connections


def connections(status: Document, view: View, rates: Rates, peer: str) -> Steps[Child]:
    """Returns the table of open connections."""
    found = rows(status, "connections")
    total = number(status, "connectionsMatched") if view.filter else number(status, "connectionsTotal")
    if not found and not view.filter and not view.connections_offset:
        return empty("No open connection.", "Connections appear here while a caller uses the tunnel.")
    form = filter_form(view)
    if not found:
        reset = tag("a", "Show all", href=view.link("connections", filter="", connections_offset=0))
        return (form, empty("No connection matches.", reset))
    with_caller = any("caller" in row for row in found)
    columns = [
        Column("Destination"),
        Column(peer.capitalize()),
        *([Column("Caller")] if with_caller else []),
        Column("Age", True, "age"),
        Column("To destination", True, "bytes", "Rate, and bytes since the connection was opened"),
        Column("To caller", True, "", "Rate, and bytes since the connection was opened"),
        Column("Queued", True, "queued", "Bytes that this program holds because a side does not read"),
        Column("State"),
    ]
    listed = yield from table(
        "Open connections",
        columns,
        (_connection(row, rates, peer, with_caller) for row in found),
        view=view,
        parameter="sort",
        anchor="connections",
    )
    return (
        form,
        listed,
        pager(view, "connections", view.connections_offset, len(found), total, "connections"),
    )


def _connection(row: Document, rates: Rates, peer: str, with_caller: bool) -> tuple[str, list[Child]]:
    via = text(row, peer)
    queued = number(row, "queuedUp") + number(row, "queuedDown")
    waiting = text(row, "waitingFor")
    kind = WARNING if stalled(row, rates) else ""

    def flow(direction: str) -> Markup:
        return transferred(number(row, direction), rates.get(connection_key(row, direction)), direction)

    strategy, protocol = text(row, "strategy"), text(row, "protocol")
    cells: list[Child] = [
        peer_text(text(row, "destination")),
        lines(
            peer_text(via) if via else tag("span", "direct", class_="zero"),
            f"strategy {strategy}" if strategy else None,
        ),
    ]
    if with_caller:
        cells.append(lines(peer_text(text(row, "caller")), protocol))
    cells += [
        units.duration(number(row, "ageSeconds")),
        flow("bytesUp"),
        flow("bytesDown"),
        tag("span", units.amount(queued), class_=None if queued else "zero"),
        lines(
            mark(WARNING, "stalled") if kind else mark(NEUTRAL, text(row, "state") or "open"),
            f"waits for {waiting}" if waiting else None,
        ),
    ]
    return kind, cells


def filter_form(view: View) -> Markup:
    """Returns a plain GET form; the other parameters of the URL stay."""
    kept = {
        key: value
        for key, value in view.parameters().items()
        if key not in ("filter", "connections_offset", "agents_offset")
    }
    return tag(
        "form",
        (tag("input", type="hidden", name=key, value=value) for key, value in kept.items()),
        tag(
            "label",
            "Filter ",
            tag(
                "input",
                type="search",
                name="filter",
                value=view.filter,
                placeholder="destination, agent, caller",
                id="filter",
                autocomplete="off",
                maxlength=256,
            ),
        ),
        tag("button", "Apply", type="submit"),
        tag("a", "Clear", href=view.link("connections", filter="", connections_offset=0, agents_offset=0))
        if view.filter
        else None,
        method="get",
        action="#connections",
        role="search",
    )


# --- dials


def dials(status: Document, key: str, caption: str, view: View) -> Steps[Child]:
    """Returns a table of answered dials; None if there are none."""
    found = rows(status, key)
    if not found:
        return None
    shown = found if view.all_dials else found[:DIALS_SHOWN]
    has = {name for row in shown for name in ("agent", "server", "caller", "strategy") if text(row, name)}
    columns = [
        Column("Time"),
        Column("Destination"),
        Column("Outcome"),
        Column("Hop and reason"),
        *([Column("Agent")] if "agent" in has else []),
        *([Column("Server")] if "server" in has else []),
        *([Column("Caller")] if "caller" in has else []),
        *([Column("Strategy")] if "strategy" in has else []),
        Column("Took", True, "", "Time until the dial was answered"),
    ]
    now = text(status, "time")
    listed = yield from table(caption, columns, (_dial(row, now, has) for row in shown))
    if len(shown) == len(found):
        return listed
    more = tag(
        "a",
        f"show all {len(found)}",
        href=view.link("failures" if key == "recentFailures" else key, all_dials=True),
    )
    return (listed, tag("p", f"the last {len(shown)} · ", more, class_="pager"))


def _dial(row: Document, now: str, has: set[str]) -> tuple[str, list[Child]]:
    outcome = text(row, "outcome")
    # A caller that gave up is not a fault of the tunnel, but may be a sign of one.
    kind = GOOD if outcome == ESTABLISHED else WARNING if outcome == CANCELLED else BAD
    ago = units.seconds_between(text(row, "time"), now)
    tried = texts(row, "triedAgents")
    hop, reason = text(row, "hop"), text(row, "reason")
    cells: list[Child] = [
        (moment(text(row, "time")), tag("span", _ago(ago), class_="small")),
        peer_text(text(row, "destination")),
        mark(kind, outcome),
        lines(peer_text(reason), hop)
        if reason
        else (peer_text(hop) if hop else tag("span", units.NONE, class_="zero")),
    ]
    if "agent" in has:
        others = [agent for agent in tried if agent != text(row, "agent")]
        also = ("also tried: ", _separated(others)) if others else None
        cells.append(lines(peer_text(text(row, "agent") or units.NONE), also))
    for key in ("server", "caller"):
        if key in has:
            cells.append(peer_text(text(row, key)))
    if "strategy" in has:
        cells.append(text(row, "strategy"))
    connect = row.get("connectSeconds")
    cells.append(units.duration(connect) if isinstance(connect, int | float) else units.NONE)
    return ("" if kind == GOOD else kind), cells


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f" {units.duration(int(max(0.0, seconds)))} ago"


def _separated(names: Sequence[str]) -> Markup:
    return markup((", " if position else "", peer_text(name)) for position, name in enumerate(names))


# --- certificates and limits


def certificates(status: Document, parts: Sequence[tuple[str, str]]) -> Steps[Child]:
    found = [(title, part(status, key)) for key, title in parts if part(status, key)]
    if not found:
        return empty("No certificate is configured.")
    now = text(status, "time")
    columns = [Column("Used for"), Column("Expires"), Column("Files"), Column("Last reload")]
    body = (_certificate(title, tls, now) for title, tls in found)
    return (yield from table("Certificates of this program", columns, body))


def _certificate(title: str, tls: Document, now: str) -> tuple[str, list[Child]]:
    expires, error = text(tls, "certificateExpires"), text(tls, "reloadError")
    kind, note = expiry(expires, now)
    files = (
        tag("div", tag("code", f"--{flag.lstrip('-')}"), " ", str(path))
        for flag, path in part(tls, "files").items()
        if path
    )
    cells: list[Child] = [
        title,
        lines(
            mark(kind, note) if expires else note,
            tag("time", units.date(expires), datetime=expires) if expires else None,
        ),
        markup(files),
        mark(BAD, error) if error else mark(GOOD, "ok"),
    ]
    return (BAD if kind == BAD or error else ""), cells


def limits(status: Document) -> Steps[Child]:
    found = rows(status, "limits")
    if not found:
        return empty("This program reports no limit.")
    columns = [
        Column("Limit"),
        Column("Now", True),
        Column("Maximum", True),
        Column("Reached", True, "", "How often since the start"),
    ]
    return (yield from table("Limits", columns, (_limit(row) for row in found)))


def _limit(row: Document) -> tuple[str, list[Child]]:
    current, maximum, reached = number(row, "current"), number(row, "maximum"), number(row, "reachedTotal")
    full = bool(maximum) and current >= maximum
    cells: list[Child] = [
        text(row, "name"),
        units.NONE if row.get("current") is None else units.integer(current),
        units.integer(maximum) if maximum else units.NONE,
        count(reached, bad=True),
    ]
    return (BAD if full else WARNING if reached else ""), cells
