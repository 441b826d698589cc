"""The key figures of both pages: agents or servers, connections, bytes, dials."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from bootbridge.status_page import units
from bootbridge.status_page.document import Document, number, part, total
from bootbridge.status_page.html import Child, Markup, tag
from bootbridge.status_page.layout import machine
from bootbridge.status_page.stalls import Rates

# Reasons of failed dials that a figure names.
REASONS_SHOWN = 2


def byte_totals(status: Document) -> Iterator[tuple[Hashable, float]]:
    """Yields the counters of transferred bytes by direction."""
    sent = part(status, "bytes")
    for direction in sent:
        yield ("bytes", direction), number(sent, direction)


def figure(label: str, value: Child, *below: Child, bad: bool = False) -> Markup:
    """Returns one key figure, with smaller lines below it."""
    smaller = (tag("dd", line, class_="small") for line in below if line)
    return tag("div", tag("dt", label), tag("dd", value), smaller, class_="figure bad" if bad else "figure")


def counter(document: Document, key: str, name: str = "") -> Markup:
    value = total(document, key)
    return machine(value, units.integer(value), name or key)


def transfer(label: str, direction: str, status: Document, rates: Rates) -> Markup:
    sent = number(part(status, "bytes"), direction)
    exact = machine(sent, units.amount(sent), f"bytes{direction[0].upper()}{direction[1:]}")
    return figure(label, units.rate(rates.get(("bytes", direction))), (exact, " since the start"))


def dial_figures(status: Document) -> tuple[Markup, Markup]:
    dials = part(status, "dials")
    retried, reasons = number(dials, "retried"), part(dials, "failed")
    waiting = f"{units.integer(number(status, 'pendingDials'))} pending"
    again = f", {units.integer(retried)} retried" if retried else ""
    most = sorted(reasons, key=lambda reason: -number(reasons, reason))[:REASONS_SHOWN]
    named = [
        f"{reason.replace('_', ' ')} {units.integer(number(reasons, reason))}"
        for reason in most
        if reasons[reason]
    ]
    failed = total(dials, "failed")
    return (
        figure("Dials established", counter(dials, "succeeded", "dialsSucceeded"), waiting + again),
        figure(
            "Dials failed",
            counter(dials, "failed", "dialsFailed"),
            *(named if failed else ()),
            bad=bool(failed),
        ),
    )
