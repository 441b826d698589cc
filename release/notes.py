"""Release notes: the section of one version, cut out of CHANGELOG.md."""

from __future__ import annotations

import re
from pathlib import Path

from release.commands import ReleaseError

UNRELEASED = "Unreleased"


def section(changelog: str, title: str) -> str:
    """Returns the text below `## TITLE` (a date may follow the title); empty if there is no such section."""
    heading = re.search(rf"(?m)^## \[?{re.escape(title)}\]?(?=\s|$).*\n", changelog)
    if heading is None:
        return ""
    rest = changelog[heading.end() :]
    following = re.search(r"(?m)^## ", rest)
    return rest[: following.start() if following else None].strip()


def write(source: Path, output: Path, version: str) -> bool:
    """Writes the notes; returns whether the changelog has a section of this version, or only Unreleased."""
    changelog = (source / "CHANGELOG.md").read_text()
    own = section(changelog, version)
    text = own or section(changelog, UNRELEASED)
    if not text:
        raise ReleaseError(f"CHANGELOG.md: section {version} not found (run make release-cut)")
    title = f"# Bootbridge {version}" if own else f"# Bootbridge {version} (not released yet)"
    (output / "RELEASE-NOTES.md").write_text(f"{title}\n\n{text}\n")
    return bool(own)
