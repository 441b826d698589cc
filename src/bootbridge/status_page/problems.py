"""What needs an operator's attention, with a link to where it shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bootbridge.status_page import units
from bootbridge.status_page.document import Document, number, part, rows, text
from bootbridge.status_page.html import Child, Markup, tag
from bootbridge.status_page.layout import BAD, GOOD, WARNING, mark, peer_text
from bootbridge.status_page.stalls import Rates, stalled

# Failures older than this are listed, but are no longer a problem.
RECENT_SECONDS = 60.0
# The certificates of a bootstrap are valid for a day, an agent's token for an hour or less: a warning
# before that would be shown all the time.
EXPIRY_WARNING_SECONDS = 2 * 3600.0
TOKEN_WARNING_SECONDS = 600.0
EXPIRY_BAD_SECONDS = 300.0
TLS_PARTS = (("tls", "agent port"), ("frontendTLS", "frontend"))


@dataclass(frozen=True)
class Problem:
    kind: str
    text: Child
    anchor: str


def problem_list(problems: list[Problem]) -> Markup:
    if not problems:
        return tag("p", mark(GOOD, "ok"), " No problem found.", class_="problems-none")
    urgent_first = sorted(problems, key=lambda problem: problem.kind != BAD)
    items = (
        tag(
            "li",
            mark(problem.kind, "problem" if problem.kind == BAD else "warning"),
            " ",
            tag("span", problem.text),
            " ",
            tag("a", "show", href=f"#{problem.anchor}"),
        )
        for problem in urgent_first
    )
    return tag("ul", items, class_="problems")


def recent_failures(status: Document) -> list[Document]:
    """Returns the dials that failed in the last minute."""
    now = text(status, "time")
    found = []
    for row in rows(status, "recentFailures"):
        age = units.seconds_between(text(row, "time"), now)
        if age is not None and age <= RECENT_SECONDS:
            found.append(row)
    return found


def shared_problems(status: Document, rates: Rates) -> Iterator[Problem]:
    """Yields the problems that both programs can have."""
    failed = recent_failures(status)
    if failed:
        last = failed[0]
        yield Problem(
            BAD,
            (
                f"{units.counted(len(failed), 'dial')} failed in the last minute; the last: ",
                peer_text(text(last, "destination")),
                ", ",
                peer_text(text(last, "reason") or text(last, "outcome")),
            ),
            "failures",
        )
    # The table has one page of the connections; the agents' own count is of all, but rises after 5 s only.
    listed = sum(stalled(row, rates) for row in rows(status, "connections"))
    held = max(listed, int(sum(number(agent, "stalledConnections") for agent in rows(status, "agents"))))
    if held:
        found = units.counted(held, "stalled connection")
        yield Problem(WARNING, f"{found}: data waits for a side that does not read", "connections")
    yield from _certificate_problems(status)
    for limit in rows(status, "limits"):
        current, maximum = number(limit, "current"), number(limit, "maximum")
        reached = int(number(limit, "reachedTotal"))
        if maximum and current >= maximum:
            yield Problem(
                BAD, f"limit reached now: {text(limit, 'name')}, {units.integer(maximum)}", "limits"
            )
        elif reached:
            times = "once" if reached == 1 else f"{units.integer(reached)} times"
            yield Problem(WARNING, f"limit reached {times} since the start: {text(limit, 'name')}", "limits")


def _certificate_problems(status: Document) -> Iterator[Problem]:
    now = text(status, "time")
    for key, _ in TLS_PARTS:
        tls = part(status, key)
        if error := text(tls, "reloadError"):
            yield Problem(BAD, ("a certificate could not be reloaded: ", error), "certificates")
        kind, note = expiry(text(tls, "certificateExpires"), now)
        if kind != GOOD:
            yield Problem(kind, f"this program's certificate {note}", "certificates")


def expiry(expires: str, now: str, soon: float = EXPIRY_WARNING_SECONDS) -> tuple[str, str]:
    """Returns how urgent an expiry is, and a text: `expires in 3d 4h`."""
    left = units.seconds_between(now, expires) if expires else None
    if left is None:
        return GOOD, "has no known expiry"
    if left <= 0:
        return BAD, f"expired {units.duration(-left)} ago"
    kind = BAD if left < EXPIRY_BAD_SECONDS else WARNING if left < soon else GOOD
    return kind, f"expires in {units.duration(left)}"
