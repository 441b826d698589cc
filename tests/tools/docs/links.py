"""Checks every link of the documents: files and anchors exist, addresses of other sites are well formed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.tools.docs.markdown import ROOT, Document

# Addresses are not fetched: a site that is down must not decide a check.
_HOST = re.compile(r"(?=.{4,253}$)([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z][a-z0-9-]*[a-z0-9]")
_LOOPBACK = ("127.0.0.1", "localhost")


def broken_links(path: Path, root: Path = ROOT) -> list[str]:
    """Returns a line for each broken link of a document: `docs/lab.md:12: target: problem`."""
    shown = path.relative_to(root)
    found = []
    for link in Document.read(path).links:
        if problem := _problem(link.target, path, root):
            found.append(f"{shown}:{link.line}: {link.target}: {problem}")
    return found


def _problem(target: str, path: Path, root: Path) -> str:
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", target):
        return address_problem(target)
    if target.startswith("/"):
        return "absolute path (write it relative to the document)"
    name, _, anchor = target.partition("#")
    file = (path.parent / unquote(name)).resolve() if name else path
    return _file_problem(file, root) or _anchor_problem(file, anchor)


def _file_problem(file: Path, root: Path) -> str:
    if not file.is_relative_to(root):
        return "outside of the repository"
    if file.is_relative_to(root / "build"):
        return "a built file, which readers do not have"
    if not file.exists():
        return "file not found"
    return "a directory (link to a file in it)" if file.is_dir() else ""


def _anchor_problem(file: Path, anchor: str) -> str:
    if not anchor:
        return ""
    if file.suffix != ".md":
        return "anchor in a file that is not Markdown"
    return "" if anchor in _anchors(file) else "anchor not found"


_anchors: Callable[[Path], set[str]] = cache(lambda file: Document.read(file).anchors)


def address_problem(address: str) -> str:
    """Returns what is wrong with the form of a URL; empty if it is well formed."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        return f"invalid URL ({error})"
    if re.search(r"\s", address):
        return "invalid URL (blank)"
    if parts.scheme == "mailto":
        return "" if "@" in parts.path else "invalid address"
    if parts.scheme == "http":
        return "" if host in _LOOPBACK else "http (use https)"
    if parts.scheme != "https":
        return f"scheme {parts.scheme!r} is not used here"
    return "" if _HOST.fullmatch(host) else f"invalid host {host!r}"


def all_broken_links(paths: list[Path], root: Path = ROOT) -> Iterator[str]:
    for path in paths:
        yield from broken_links(path, root)
