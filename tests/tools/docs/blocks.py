"""Finds the code blocks of a document that are marked as runnable, and the output that they print.

A comment before a block, which readers do not see, marks it (CONTRIBUTING.md, "Documentation"):

    <!-- run: NAME -->                 pasted into a shell; blocks of the same NAME share it
    <!-- run in the lab: NAME -->      the same as root, with a lab (only in the end-to-end tests)
    <!-- run: NAME, exit 1 -->         its last command ends with this code
    <!-- output -->                    what the block before it has printed to stdout
    <!-- output: stderr -->            the same, to stderr

In an output `…` stands for any text inside a line, and a line with nothing else for any number of lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from tests.tools.docs.markdown import ROOT, CodeBlock, Comment, Document

_RUN = re.compile(r"run(?P<lab> in the lab)?: (?P<name>[a-z][a-z0-9-]*)(?:, exit (?P<code>\d+))?")
_OUTPUT = re.compile(r"output(?:: (?P<stream>stderr))?")
_MARKER = re.compile(r"(run|output)\b")


class Place(Enum):
    """Where a session runs."""

    ALONE = "a network namespace without root"
    LAB = "as root, with a lab"


class MarkerError(Exception):
    """A marker that is not one of those above, or stands before nothing."""


@dataclass(frozen=True)
class Block:
    """One block, and what is expected of it. None: the document does not show this output."""

    line: int
    script: str
    exit_code: int = 0
    stdout: str | None = None
    stderr: str | None = None

    def printing(self, stream: str, text: str) -> Block | None:
        """Returns the block with an expected output; None if it has one already."""
        if stream == "stderr":
            return replace(self, stderr=text) if self.stderr is None else None
        return replace(self, stdout=text) if self.stdout is None else None


@dataclass
class Session:
    """Blocks of one document that are pasted into one shell."""

    document: Path
    name: str
    place: Place
    blocks: list[Block] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.document.name}: {self.name}"


def sessions(path: Path, root: Path = ROOT) -> list[Session]:
    """Returns the sessions of a document, in their order."""
    found: dict[str, Session] = {}
    last: Session | None = None
    for comment, block in _marked(Document.read(path)):
        where = f"{path.relative_to(root)}:{comment.line}"
        if match := _RUN.fullmatch(comment.text):
            place = Place.LAB if match["lab"] else Place.ALONE
            last = found.setdefault(match["name"], Session(path, match["name"], place))
            if last.place is not place:
                raise MarkerError(f"{where}: session {last.name!r} runs in two places")
            last.blocks.append(Block(block.line, block.text, int(match["code"] or 0)))
        elif match := _OUTPUT.fullmatch(comment.text):
            if last is None:
                raise MarkerError(f"{where}: output without a block that prints it")
            shown = last.blocks[-1].printing(match["stream"] or "stdout", block.text)
            if shown is None:
                raise MarkerError(f"{where}: second output of one block")
            last.blocks[-1] = shown
        else:
            raise MarkerError(f"{where}: unknown marker {comment.text!r}")
    return list(found.values())


def _marked(document: Document) -> Iterator[tuple[Comment, CodeBlock]]:
    marker: Comment | None = None
    for element in document.elements:
        if marker is not None:
            if not isinstance(element, CodeBlock):
                raise MarkerError(f"{document.path.name}:{marker.line}: no code block after the marker")
            yield marker, element
            marker = None
        elif isinstance(element, Comment) and _MARKER.match(element.text):
            marker = element
    if marker is not None:
        raise MarkerError(f"{document.path.name}:{marker.line}: no code block after the marker")
