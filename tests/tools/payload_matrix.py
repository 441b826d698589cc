"""Writes the matrix of releases, images, protocols and IP families into docs/install.md.

python -m tests.tools.payload_matrix --write
"""

from __future__ import annotations

import sys
from pathlib import Path

from bootbridge.bootstrap.plan import payload_programs

DOCUMENT = Path(__file__).parents[2] / "docs/install.md"
BEGIN, END = "<!-- payload matrix: begin -->\n", "<!-- payload matrix: end -->\n"


def updated(text: str) -> str:
    """Returns the document with the matrix of the table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{payload_programs.matrix()}{END}{after}"


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    DOCUMENT.write_text(updated(DOCUMENT.read_text()))
