"""Turns the changelog's section Unreleased into that of the version to release."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from release import notes, source
from release.commands import ReleaseError

HEADING = f"## {notes.UNRELEASED}\n"


def cut(root: Path, today: date) -> str:
    """Writes CHANGELOG.md and returns the version; its section gets the date, Unreleased starts anew."""
    version = source.version(root)
    path = root / "CHANGELOG.md"
    changelog = path.read_text()
    if notes.section(changelog, version):
        raise ReleaseError(
            f"CHANGELOG.md: section {version} exists already (set __version__ in src/bootbridge/__init__.py)"
        )
    if not notes.section(changelog, notes.UNRELEASED):
        raise ReleaseError(f"CHANGELOG.md: section {notes.UNRELEASED} is empty or missing")
    heading = f"{HEADING}\n## {version} ({today.isoformat()})\n"
    path.write_text(re.sub(rf"(?m)^{re.escape(HEADING)}", heading, changelog, count=1))
    return version
