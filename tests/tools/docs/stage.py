"""Copies all documents and the reference into one tree for Sphinx, with the navigation of docs/index.md.

The tree has the layout of the repository, so that links between documents are the same in both.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.tools.docs.markdown import ROOT, CodeBlock, Comment, Document, Heading, Link, documents

INDEX = "docs/index.md"
REFERENCE = "docs/reference"
_PICTURES = "docs/pictures"
_CONFIGURATION = Path(__file__).parent
# Sphinx names the first page by its document; this one leads there.
_FIRST_PAGE = """<!doctype html><title>Bootbridge</title>
<meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">Bootbridge</a>
"""
# Diagrams are shown as their source: the library that draws them is larger than the site.
_NOT_DRAWN = ("```mermaid\n", "```text\n")
_INDENT = "    "
# The section of docs/index.md below which the reference is shown.
_REFERENCE_SECTION = "Operate"
_NOT_MARKDOWN = re.compile(r"[a-z]+:|#")


class NotInNavigation(Exception):
    """A document that docs/index.md does not link to."""


def stage(target: Path, reference: Mapping[str, str], root: Path = ROOT) -> None:
    """Writes the tree of sources."""
    shutil.rmtree(target, ignore_errors=True)
    paths = documents(root)
    for path in [*paths, *linked_files(paths, root)]:
        copy = target / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            copy.write_text(with_languages(Document.read(path)))
        else:
            shutil.copyfile(path, copy)
    # Browsers get the pictures of <picture> elements at the same paths; Sphinx copies only those of Markdown.
    shutil.copytree(root / _PICTURES, target / "_extra" / _PICTURES)
    (target / "_extra/index.html").write_text(_FIRST_PAGE)
    shutil.copyfile(_CONFIGURATION / "conf.py", target / "conf.py")
    (target / "_static").mkdir()
    shutil.copyfile(_CONFIGURATION / "site.css", target / "_static/site.css")
    for name, text in reference.items():
        page = target / REFERENCE / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    with (target / INDEX).open("a") as index:
        index.write(toctrees(navigation(root, paths), root))
    with (target / REFERENCE / "index.md").open("a") as index:
        index.write(_toctree("", [name for name in reference if name != "index.md"]))


def with_languages(document: Document) -> str:
    """Returns the text with indented blocks as fenced ones: commands in colours, and output as text."""
    lines = document.text.replace(*_NOT_DRAWN).splitlines()
    above: object = None
    for element in document.elements:
        if isinstance(element, CodeBlock) and lines[element.line - 1].startswith(_INDENT) and element.is_top:
            is_output = isinstance(above, Comment) and above.text.startswith("output")
            count = element.text.count("\n")
            first, last = element.line - 1, element.line + count - 2
            lines[first : last + 1] = element.text.splitlines()
            lines[first] = f"```{'text' if is_output else 'bash'}\n{lines[first]}"
            lines[last] += "\n```"
        above = element
    return "\n".join(lines) + "\n"


def linked_files(paths: Iterable[Path], root: Path = ROOT) -> list[Path]:
    """Returns the files that the documents link to or show, and that are no documents."""
    found: set[Path] = set()
    for path in paths:
        for link in Document.read(path).links:
            file = (path.parent / link.target.partition("#")[0]).resolve()
            if not _NOT_MARKDOWN.match(link.target) and file.suffix != ".md":
                found.add(file)
    return sorted(found)


def navigation(root: Path, paths: Iterable[Path]) -> dict[str, dict[Path, str]]:
    """Returns the documents by the section of docs/index.md that links to them first, with the link's text.

    Raises NotInNavigation if one is missing, because readers would not find it.
    """
    index = root / INDEX
    sections: dict[str, dict[Path, str]] = {}
    seen = {index}
    title = ""
    for element in Document.read(index).elements:
        if isinstance(element, Heading) and element.level == 2:
            title = element.text
        elif isinstance(element, Link) and title and not _NOT_MARKDOWN.match(element.target):
            file = (index.parent / element.target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file not in seen:
                seen.add(file)
                sections.setdefault(title, {})[file] = element.text
    if missing := sorted(str(path.relative_to(root)) for path in set(paths) - seen):
        raise NotInNavigation(f"{INDEX}: no link to {', '.join(missing)}")
    return sections


def toctrees(sections: Mapping[str, Mapping[Path, str]], root: Path) -> str:
    """Returns Sphinx' navigation: hidden lists of pages, one for each section."""
    parts = []
    for title, files in sections.items():
        entries = [
            f"{text[:1].upper()}{text[1:]} <{os.path.relpath(file, root / 'docs')}>"
            for file, text in files.items()
        ]
        if title == _REFERENCE_SECTION:
            entries.append("reference/index.md")
        parts.append(_toctree(title, entries))
    return "".join(parts)


def _toctree(caption: str, entries: Iterable[str]) -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])
