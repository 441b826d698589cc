"""Examples in documents, help and hints name images and files of the version that is released."""

from __future__ import annotations

import re
from pathlib import Path

from bootbridge import __version__
from tests.tools.docs.markdown import documents

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"bootbridge(?:-[a-z]+)*[:-]v?(\d+\.\d+\.\d+)")


def test_examples_name_the_present_version() -> None:
    files = [path for path in documents() if path.name != "CHANGELOG.md"]
    files += [ROOT / "SECURITY.md", *(ROOT / "src/bootbridge").rglob("*.py")]
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}": match[1]
        for path in files
        for match in NAMED.finditer(path.read_text())
    }
    assert len(found) > 5
    assert {where for where, version in found.items() if version != __version__} == set()
