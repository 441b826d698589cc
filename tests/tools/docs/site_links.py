"""Checks the built pages: links lead to pages and anchors that exist; nothing is loaded from another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from tests.tools.docs.markdown import targets_of

_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//|[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_HARMLESS = ("data:", "mailto:")
# In a style sheet. SVG namespaces inside data URLs are names, not addresses.
_LOADED_BY_CSS = re.compile(r"@import\s+[\"']?([^\"';)]+)|url\(\s*[\"']?(?!data:|#)([^\"')]+)")


@dataclass
class _Page(HTMLParser):
    """The anchors of a page, what it links to, and what a browser loads with it."""

    anchors: set[str] = field(default_factory=set)
    linked: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.anchors |= {value for name, value in attrs if name in ("id", "name") and value}
        into = self.linked if tag == "a" or self._is_a_name(tag, attrs) else self.loaded
        into.update(targets_of(attrs))
        style = dict(attrs).get("style") or ""
        self.loaded.update(part for found in _LOADED_BY_CSS.findall(style) for part in found if part)

    @staticmethod
    def _is_a_name(tag: str, attrs: list[tuple[str, str | None]]) -> bool:
        """A <link> that a browser does not load, such as rel="next"."""
        loaded = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "prefetch", "modulepreload"}
        return tag == "link" and not loaded & set((dict(attrs).get("rel") or "").split())


def problems(site: Path) -> list[str]:
    """Returns a line for each broken link and each address outside that a page or style sheet loads."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    return [*_of_pages(site, pages), *_of_style_sheets(site)]


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def _of_pages(site: Path, pages: dict[Path, _Page]) -> Iterator[str]:
    for path, page in pages.items():
        shown = path.relative_to(site)
        for target in sorted(page.linked | page.loaded):
            if _ADDRESS.match(target):
                if target in page.loaded and not target.startswith(_HARMLESS):
                    yield f"{shown}: loads {target}"
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / unquote(name.partition("?")[0])).resolve() if name else path
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                yield f"{shown}: {target}: file not found"
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
                yield f"{shown}: {target}: anchor not found"


def _of_style_sheets(site: Path) -> Iterator[str]:
    for path in sorted(site.rglob("*.css")):
        for found in _LOADED_BY_CSS.findall(path.read_text()):
            for target in filter(None, found):
                if _ADDRESS.match(target):
                    yield f"{path.relative_to(site)}: loads {target}"
                elif not (path.parent / target.partition("#")[0].partition("?")[0]).is_file():
                    yield f"{path.relative_to(site)}: {target}: file not found"
