"""The parts that both pages have: frame, head, sections, tables, figures, marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bootbridge.runtime.sliced_work import Steps
from bootbridge.status_page import units
from bootbridge.status_page.document import Document, number, text
from bootbridge.status_page.html import Child, Markup, markup, printable, tag
from bootbridge.status_page.view import PERIOD_SECONDS, ROWS_PER_PAGE, View

# Longer words may break anywhere; an IPv6 address with its port has at most 47.
WORD_CHARS_MAX = 47
GOOD, WARNING, BAD, NEUTRAL = "good", "warning", "bad", "neutral"


@dataclass(frozen=True)
class Column:
    """A column of a table. `order` is the value of the URL's parameter that sorts by it."""

    title: str
    numeric: bool = False
    order: str = ""
    # Shown as a tooltip of the title.
    help: str = ""


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    content: Child
    count: str = ""


def page(
    status: Document, view: View, *, state: Markup, facts: Child, sections: Sequence[Section], seconds: float
) -> Steps[str]:
    """Returns the whole document, which updates itself every so many seconds."""
    program = text(status, "program") or "proxy"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="refresh", content=view.refresh) if view.refresh else None,
        tag("title", f"{program} status"),
        tag("link", rel="icon", href="status.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="status.css"),
        tag("script", src="status.js", defer=True),
    )
    yield
    header = _header(status, view, program, state, facts, seconds)
    yield
    contents = tag("nav", _contents(sections), aria_label="Sections")
    yield
    finished = []
    for section in sections:
        finished.append(_section(section))
        yield
    body = tag(
        "body",
        tag("a", "Skip to the status", class_="skip", href="#main"),
        header,
        contents,
        tag("main", finished, id="main", tabindex=-1),
        _footer(),
    )
    yield
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _header(
    status: Document, view: View, program: str, state: Markup, facts: Child, seconds: float
) -> Markup:
    time = tag("span", moment(text(status, "time")), id="updated", data_seconds=f"{seconds:g}")
    slower = f", updated every {seconds:g} s" if seconds > PERIOD_SECONDS else ""
    return tag(
        "header",
        tag("div", tag("h1", program), state, class_="name"),
        tag("p", facts, class_="facts"),
        tag(
            "div",
            tag("span", "as of ", time, " UTC", tag("span", slower, id="slower")),
            tag("button", "Pause", id="pause", type="button", hidden=True, aria_pressed="false"),
            tag("noscript", _refresh_links(view)),
            class_="live",
        ),
        tag("p", "", id="lost", role="alert", hidden=True),
    )


def _refresh_links(view: View) -> Child:
    if view.refresh:
        return (f"reloads every {view.refresh} s · ", tag("a", "stop", href=view.link(refresh=0)))
    return (tag("a", "reload", href=view.link()), " · ", tag("a", "every 5 s", href=view.link(refresh=5)))


def _contents(sections: Iterable[Section]) -> Markup:
    items = (
        tag("li", tag("a", section.title, href=f"#{section.anchor}"), badge(section.count))
        for section in sections
    )
    return tag("ul", items)


def _section(section: Section) -> Markup:
    title = tag("h2", section.title, badge(section.count), id=f"{section.anchor}-title")
    return tag(
        "section", title, section.content, id=section.anchor, aria_labelledby=f"{section.anchor}-title"
    )


def _footer() -> Markup:
    links = (tag("a", "status as JSON", href="status"), " · ", tag("a", "metrics", href="metrics"))
    return tag("footer", tag("p", links, " · this page makes no request to any other host"))


# --- parts


def badge(count: str) -> Markup | None:
    return tag("span", count, class_="badge") if count else None


def mark(kind: str, label: str, title: str = "") -> Markup:
    """Returns a short coloured label; the text says what the colour says."""
    return tag("span", label, class_=f"mark {kind}", title=title or None)


def machine(value: float, shown: str, name: str = "") -> Markup:
    """Returns a number as people read it, with its exact value beside it."""
    exact = int(value) if value == int(value) else round(value, 3)
    return tag(
        "data",
        shown,
        value=exact,
        title=None if shown == str(exact) else units.integer(value),
        data_name=name or None,
    )


def count(value: float, *, bad: bool = False, name: str = "") -> Markup:
    """Returns a count; zero is pale, so that the others are seen."""
    shown = machine(value, units.integer(value), name)
    if not value:
        return tag("span", shown, class_="zero")
    return tag("strong", shown, class_=BAD) if bad else shown


def peer_text(value: str) -> Markup:
    """Returns text that a peer has chosen, isolated from the direction of the text around it.

    A table makes room for its words, but not for one without end.
    """
    is_long = max(map(len, printable(value).split()), default=0) > WORD_CHARS_MAX
    return tag("bdi", value, class_="long" if is_long else None)


def moment(time: str) -> Markup:
    return tag("time", units.clock(time), datetime=time, title=time)


def lines(*parts: Child) -> Markup:
    """Returns a cell with a main line and smaller ones below it; empty lines are left out."""
    first, *rest = parts
    return markup((tag("div", first), (tag("div", line, class_="small") for line in rest if line)))


def empty(title: str, *hint: Child) -> Markup:
    return tag("div", tag("p", title, class_="empty-title"), tag("p", hint) if hint else None, class_="empty")


# --- tables


def table(
    caption: str,
    columns: Sequence[Column],
    body: Iterable[tuple[str, Sequence[Child]]],
    *,
    view: View | None = None,
    parameter: str = "",
    anchor: str = "",
) -> Steps[Markup]:
    """Returns a table of (class of the row, cells). The first cell of a row is its header.

    `parameter` names the URL's parameter of the order, for columns that have one.
    """
    heads = (_column_head(column, view, parameter, anchor) for column in columns)
    found = []
    for kind, cells in body:
        found.append(_row(kind, cells, columns))
        yield
    return tag(
        "div",
        tag("table", tag("caption", caption), tag("thead", tag("tr", heads)), tag("tbody", found)),
        class_="table",
        role="region",
        aria_label=caption,
        tabindex=0,
    )


def _column_head(column: Column, view: View | None, parameter: str, anchor: str) -> Markup:
    title: Child = column.title
    sorted_by = None
    if view is not None and column.order:
        changes = {parameter: column.order, f"{anchor}_offset": 0}
        title = tag("a", title, href=view.link(anchor, **changes))
        # The largest or most urgent rows come first, names in ascending order.
        if getattr(view, parameter) == column.order:
            sorted_by = "ascending" if column.order == "id" else "descending"
    numeric = "number" if column.numeric else None
    return tag("th", title, scope="col", class_=numeric, aria_sort=sorted_by, title=column.help or None)


def _row(kind: str, cells: Sequence[Child], columns: Sequence[Column]) -> Markup:
    made = [tag("th", cells[0], scope="row")]
    for column, cell in zip(columns[1:], cells[1:], strict=True):
        made.append(tag("td", cell, class_="number" if column.numeric else None, data_label=column.title))
    return tag("tr", made, class_=kind or None)


def pager(view: View, anchor: str, offset: int, shown: int, total: float, what: str) -> Markup | None:
    """Returns which rows of how many are shown, and links to the others."""
    if total <= shown and not offset:
        return None
    key = f"{anchor}_offset"
    before, after = max(0, offset - ROWS_PER_PAGE), offset + ROWS_PER_PAGE
    last = offset + shown
    where = f"{units.integer(offset + 1)}–{units.integer(last)} of " if shown else "none of "
    return tag(
        "p",
        tag("a", "← previous", href=view.link(anchor, **{key: before}), rel="prev") if offset else None,
        tag("span", where, machine(total, units.integer(total)), f" {what}"),
        tag("a", "next →", href=view.link(anchor, **{key: after}), rel="next") if last < total else None,
        class_="pager",
    )


def transferred(total: float, per_second: float | None, name: str = "") -> Markup:
    """Returns a rate with the total below it."""
    flowing = per_second is not None and per_second >= 0.5
    shown = tag("span", units.rate(per_second), class_=None if flowing else "zero")
    return lines(shown, machine(total, units.amount(total), name) if total else None)


def uptime(status: Document) -> str:
    return f"up {units.duration(number(status, 'uptimeSeconds'))}"
