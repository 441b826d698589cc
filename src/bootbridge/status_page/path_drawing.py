"""Draws the path of connections as inline SVG: a hub, what is left of it, right of it, and behind that.

Two drawings of the same graph, of which CSS shows one: columns for a wide window, a tree for a narrow one.
Colours come from classes, because the page allows no inline style.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log2

from bootbridge.runtime.sliced_work import Steps
from bootbridge.status_page import units
from bootbridge.status_page.html import Child, Markup, markup, printable, tag
from bootbridge.status_page.layout import BAD, NEUTRAL, WARNING

NODE_HEIGHT, ROW_HEIGHT = 46, 66
HEADING_HEIGHT = 30
LINE_HEIGHT = 17
# Widths in the usual system fonts, the widest of them: a bold character of a title, one of a detail.
TITLE_CHAR, DETAIL_CHAR = 8.7, 6.9
# Strokes from an idle edge to one that transfers 1 GiB/s.
STROKE_MIN, STROKE_MAX = 1.5, 7.0
# An edge bends here, next to the hub; the rest of it is straight, with the labels above and below.
BEND = 70
NARROW_WIDTH = 340
INDENT = 22


@dataclass(frozen=True)
class Edge:
    """`up` and `down` are rates, away from the caller and towards it; `note` replaces them."""

    up: float | None = None
    down: float | None = None
    note: str = ""
    failure: str = ""
    kind: str = NEUTRAL

    @property
    def labels(self) -> tuple[str, str]:
        if self.note:
            return self.note, ""
        if not self.flowing:
            return ("idle" if self.up is not None else ""), ""
        return f"→ {units.rate(self.up)}", f"← {units.rate(self.down)}"

    @property
    def flowing(self) -> bool:
        return (self.up or 0) >= 0.5 or (self.down or 0) >= 0.5

    @property
    def width(self) -> float:
        rate = (self.up or 0) + (self.down or 0)
        share = min(1.0, log2(1 + rate) / 30)
        return round(STROKE_MIN + share * (STROKE_MAX - STROKE_MIN), 1)


@dataclass(frozen=True)
class Node:
    """`parent` is the index of the node to the right of the hub that a node behind it belongs to."""

    title: str
    detail: str = ""
    kind: str = NEUTRAL
    edge: Edge = field(default_factory=Edge)
    parent: int = 0
    link: str = ""


@dataclass(frozen=True)
class Graph:
    hub: Node
    left: list[Node]
    right: list[Node]
    behind: list[Node]
    headings: tuple[str, ...]
    summary: str


def drawing(graph: Graph) -> Steps[Markup]:
    legend = (
        "→ away from the API server, ← towards it. Coloured: stalled, draining, or failed in the last minute."
    )
    wide = yield from _wide(graph)
    narrow = yield from _narrow(graph)
    return tag("figure", wide, narrow, tag("figcaption", legend), class_="path")


# --- wide: columns


@dataclass(frozen=True)
class _Column:
    x: int
    width: int

    @property
    def end(self) -> int:
        return self.x + self.width


_WIDE = 1280
_THREE = (_Column(0, 320), _Column(510, 260), _Column(960, 320))
_FOUR = (_Column(0, 140), _Column(275, 180), _Column(625, 235), _Column(1040, 240))


def _wide(graph: Graph) -> Steps[Markup]:
    columns: tuple[_Column, ...] = _FOUR if len(graph.headings) == len(_FOUR) else _THREE
    rows = max(len(graph.left), len(graph.right), len(graph.behind), 1)
    height = HEADING_HEIGHT + rows * ROW_HEIGHT + 6
    middle = HEADING_HEIGHT + rows * ROW_HEIGHT / 2

    def centres(nodes: list[Node]) -> list[float]:
        return [middle + (index - (len(nodes) - 1) / 2) * ROW_HEIGHT for index in range(len(nodes))]

    left, right, behind = centres(graph.left), centres(graph.right), centres(graph.behind)
    start, hub, far = columns[:3]
    headings = zip(graph.headings, columns, strict=True)
    parts: list[Child] = [
        tag("text", title, x=column.x, y=14, class_="heading") for title, column in headings
    ]
    for node, y in zip(graph.left, left, strict=True):
        bend_at = hub.x - BEND
        line = f"M{start.end},{y:g} H{bend_at} {_bend(bend_at, y, hub.x, middle)}"
        parts.append(_edge(node.edge, line, _stacked_labels(node.edge, start.end + 10, y, "start")))
        yield
    for node, y in zip(graph.right, right, strict=True):
        parts.append(_edge_to_the_right(node.edge, hub.end, middle, far.x, y))
        yield
    for node, y in zip(graph.behind, behind, strict=True):
        parent = right[min(node.parent, len(right) - 1)] if right else middle
        parts.append(_edge_to_the_right(node.edge, far.end, parent, columns[3].x, y))
        yield
    for nodes, column, heights in (
        (graph.left, columns[0], left),
        ([graph.hub], columns[1], [middle]),
        (graph.right, columns[2], right),
        (graph.behind, columns[-1], behind),
    ):
        for node, y in zip(nodes, heights, strict=True):
            parts.append(_node(node, column.x, y - NODE_HEIGHT / 2, column.width))
            yield
    return _svg("wide", _WIDE, height, graph.summary, parts)


def _edge_to_the_right(edge: Edge, x1: float, y1: float, x2: float, y2: float) -> Markup:
    line = f"M{x1},{y1:g} {_bend(x1, y1, x1 + BEND, y2)} H{x2}"
    return _edge(edge, line, _stacked_labels(edge, x2 - 8, y2, "end"))


def _bend(x1: float, y1: float, x2: float, y2: float) -> str:
    middle = (x1 + x2) / 2
    return f"C{middle:g},{y1:g} {middle:g},{y2:g} {x2:g},{y2:g}"


def _edge(edge: Edge, line: str, labels: Child) -> Markup:
    flow = None
    if edge.flowing:
        back = " back" if (edge.down or 0) > (edge.up or 0) else ""
        flow = tag("path", d=line, class_=f"flow{back}", stroke_width=round(max(0.8, edge.width / 3), 1))
    kind = f"edge {edge.kind}{' flowing' if edge.flowing else ''}"
    return tag("g", tag("path", d=line, stroke_width=edge.width, class_="line"), flow, labels, class_=kind)


def _stacked_labels(edge: Edge, x: float, y: float, anchor: str) -> Iterator[Markup]:
    """One above the line, the others below it."""
    above, below = edge.labels
    if above:
        yield _label(above, x, y - 7, anchor)
    if below:
        yield _label(below, x, y + 17, anchor)
    if edge.failure:
        yield _label(edge.failure, x, y + (31 if below else 17), anchor, failure=True)


def _label(text: str, x: float, y: float, anchor: str, *, failure: bool = False) -> Markup:
    kind = "label failure" if failure else "label"
    return tag("text", text, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor, class_=kind)


def _node(node: Node, x: float, top: float, width: float, corner: Child = None) -> Markup:
    """`corner` is drawn over the node, in the line of its detail."""
    y = top + (20 if node.detail else 28)
    # As it will be shown: one character that does not print becomes up to ten.
    title = shortened(printable(node.title), int((width - 32) / TITLE_CHAR))
    detail = shortened(printable(node.detail), int((width - 18) / DETAIL_CHAR))
    content = (
        tag("title", f"{node.title} · {node.detail}" if node.detail else node.title),
        tag(
            "rect", x=f"{x + 0.5:g}", y=f"{top + 0.5:g}", width=f"{width - 1:g}", height=NODE_HEIGHT - 1, rx=7
        ),
        tag("circle", cx=f"{x + 13:g}", cy=f"{y - 4.5:g}", r=4, class_="dot"),
        # Cut at the node's right edge: the widest characters need more room than the usual ones.
        tag(
            "svg",
            tag("text", title, x=f"{x + 23:g}", y=f"{y:g}", class_="title"),
            tag("text", detail, x=f"{x + 10:g}", y=f"{y + LINE_HEIGHT:g}", class_="detail")
            if detail
            else None,
            width=f"{x + width - 2:g}",
        ),
        corner,
    )
    shape = tag("g", content, class_=f"node {node.kind}")
    return tag("a", shape, href=node.link) if node.link else shape


# --- narrow: a tree


def _narrow(graph: Graph) -> Steps[Markup]:
    """The same from top to bottom: what is behind a node is indented below it."""
    tree = _Tree()
    for node in graph.left:
        tree.place(node, 0)
        x, y = INDENT / 2, tree.bottom
        tree.parts.append(_edge(node.edge, f"M{x:g},{y:g} v30", _line_of_labels(node.edge, x + 12, y + 19)))
        tree.bottom = y + 30
        yield
    hub = tree.place(graph.hub, 0)
    for index, node in enumerate(graph.right):
        y = tree.place(node, 1, labels=True)
        tree.connect(node.edge, 1, hub, y)
        yield
        for child in graph.behind:
            if child.parent == index:
                tree.connect(child.edge, 2, y, tree.place(child, 2))
                yield
    return _svg("narrow", NARROW_WIDTH, tree.bottom + 4, graph.summary, [*tree.trunks, *tree.parts])


class _Tree:
    """A tree as it grows downwards."""

    def __init__(self) -> None:
        self.parts: list[Child] = []
        self.trunks: list[Child] = []
        self.bottom = 0.0

    def place(self, node: Node, indent: int, *, labels: bool = False) -> float:
        """Draws a node below the last one, with the labels of its edge above it; returns its middle."""
        x = indent * INDENT
        top = self.bottom + (0 if not indent else 24 if labels else 6)
        corner: Child = None
        if labels:
            self.parts.append(
                tag("g", _line_of_labels(node.edge, x, top - 7), class_=f"edge {node.edge.kind}")
            )
        elif indent:
            # In the node, so that a long list stays short.
            failure = node.edge.failure
            y = top + 20 + (LINE_HEIGHT if node.detail else 8)
            text = failure or _labels_in_line(node.edge)
            corner = _label(text, NARROW_WIDTH - 10, y, "end", failure=bool(failure)) if text else None
        self.parts.append(_node(node, x, top, NARROW_WIDTH - x, corner))
        self.bottom = top + NODE_HEIGHT
        return top + NODE_HEIGHT / 2

    def connect(self, edge: Edge, indent: int, from_y: float, to_y: float) -> None:
        x = indent * INDENT
        trunk = x - INDENT / 2
        start = from_y + NODE_HEIGHT / 2
        self.trunks.append(
            tag("path", d=f"M{trunk:g},{start:g} V{to_y:g}", class_="line", stroke_width=STROKE_MIN)
        )
        self.parts.append(_edge(edge, f"M{trunk:g},{to_y:g} H{x:g}", None))


def _line_of_labels(edge: Edge, x: float, y: float) -> Iterator[Markup]:
    if text := _labels_in_line(edge):
        yield _label(text, x, y, "start")
    if edge.failure:
        yield _label(edge.failure, NARROW_WIDTH - 2, y, "end", failure=True)


def _labels_in_line(edge: Edge) -> str:
    return "  ".join(each for each in edge.labels if each)


# --- both


def _svg(kind: str, width: float, height: float, summary: str, parts: list[Child]) -> Markup:
    box = f"0 0 {width:g} {height:g}"
    return tag("svg", tag("title", summary), markup(parts), viewBox=box, role="img", class_=kind)


def shortened(value: str, chars: int) -> str:
    """Returns at most `chars` characters: start and end, which usually differ most."""
    if len(value) <= chars:
        return value
    end = max(1, (chars - 1) // 3)
    return f"{value[: chars - 1 - end]}…{value[-end:]}"


def urgency(kind: str) -> int:
    """Returns a rank for sorting: problems first."""
    return (BAD, WARNING).index(kind) if kind in (BAD, WARNING) else 2
