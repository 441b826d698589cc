"""Writes the matrix of releases, images, protocols and IP families into docs/install.md.

python -m tests.tools.payload_matrix --write
"""

from __future__ import annotations

import sys
from pathlib import Path

from bootbridge.bootstrap.plan import payload_programs
from tests.tools.generated_section import replaced

DOCUMENT = Path(__file__).parents[2] / "docs/install.md"
BEGIN, END = "<!-- payload matrix: begin -->\n", "<!-- payload matrix: end -->\n"


def updated(text: str) -> str:
    """Returns the document with the matrix of the table."""
    return replaced(text, BEGIN, END, payload_programs.matrix())


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    DOCUMENT.write_text(updated(DOCUMENT.read_text()))
