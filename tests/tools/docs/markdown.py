"""A Markdown document as values: headings with GitHub's anchors, links, code blocks and comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from itertools import takewhile
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[3]
# Documents outside these are not for readers: tests and tools explain themselves.
_FOLDERS = ("docs", "deploy", "bench", "peers", "release")
_NO_PART_OF_AN_ANCHOR = re.compile(r"[^\w\- ]")
_LINK_ATTRIBUTES = ("href", "src")


def documents(root: Path = ROOT) -> list[Path]:
    """Returns all documents for readers: those at the top, and those of some folders."""
    below = (path for folder in _FOLDERS for path in (root / folder).rglob("*.md"))
    return [*sorted(root.glob("*.md")), *sorted(below)]


@dataclass(frozen=True)
class Link:
    """A link with its text, or a picture; `line` is that of its paragraph."""

    line: int
    target: str
    text: str = ""


@dataclass(frozen=True)
class CodeBlock:
    """A code block, fenced or indented, as it is shown; `is_top`: outside of lists and quotes."""

    line: int
    text: str
    is_top: bool = True


@dataclass(frozen=True)
class Comment:
    """An HTML comment that stands alone, without its delimiters."""

    line: int
    text: str


@dataclass(frozen=True)
class Heading:
    """A heading, as text."""

    line: int
    level: int
    text: str


Element = Heading | Link | CodeBlock | Comment


@dataclass(frozen=True)
class Document:
    """One document. Elements are in their order."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> Document:
        return cls(path, path.read_text())

    @cached_property
    def elements(self) -> list[Element]:
        parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
        return list(_elements(parser.parse(self.text)))

    @property
    def links(self) -> list[Link]:
        return [each for each in self.elements if isinstance(each, Link)]

    @cached_property
    def anchors(self) -> set[str]:
        """Returns the anchors that GitHub gives the headings: repeated ones are numbered."""
        found: set[str] = set()
        for heading in self.elements:
            if isinstance(heading, Heading):
                anchor = name = _anchor(heading.text)
                number = 0
                while anchor in found:
                    number += 1
                    anchor = f"{name}-{number}"
                found.add(anchor)
        return found


def _anchor(text: str) -> str:
    return _NO_PART_OF_AN_ANCHOR.sub("", text.strip().lower()).replace(" ", "-")


def _elements(tokens: Sequence[Token]) -> Iterator[Element]:
    level = 0
    for token in tokens:
        line = token.map[0] + 1 if token.map else 0
        if token.type == "heading_open":
            level = int(token.tag.removeprefix("h"))
        elif token.type in ("fence", "code_block"):
            yield CodeBlock(line, token.content, token.level == 0)
        elif token.type == "html_block":
            yield from _html(token.content, line)
        elif token.type == "inline":
            if level:
                yield Heading(line, level, _plain(token.children or ()))
                level = 0
            yield from _inline(token, line)


def _plain(tokens: Iterable[Token]) -> str:
    return "".join(each.content for each in tokens if each.type in ("text", "code_inline"))


def _link_text(tokens: Iterable[Token]) -> str:
    return _plain(takewhile(lambda token: token.type != "link_close", tokens))


def _inline(token: Token, line: int) -> Iterator[Element]:
    children = token.children or []
    for place, each in enumerate(children):
        if each.type == "link_open":
            yield Link(line, str(each.attrs["href"]), _link_text(children[place + 1 :]))
        elif each.type == "image":
            yield Link(line, str(each.attrs["src"]))
        elif each.type == "html_inline":
            yield from _html(each.content, line)


def _html(text: str, line: int) -> Iterator[Element]:
    parser = _Html()
    parser.feed(text)
    yield from (Comment(line, comment.strip()) for comment in parser.comments)
    yield from (Link(line, target) for target in parser.targets)


class _Html(HTMLParser):
    """Collects comments and targets of links."""

    def __init__(self) -> None:
        super().__init__()
        self.comments: list[str] = []
        self.targets: list[str] = []

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += targets_of(attrs)


def targets_of(attributes: list[tuple[str, str | None]]) -> list[str]:
    """Returns what an element of HTML links to or shows."""
    found = [value for name, value in attributes if name in _LINK_ATTRIBUTES and value]
    sets = [value for name, value in attributes if name == "srcset" and value]
    return found + [part.split()[0] for value in sets for part in value.split(",") if part.strip()]
