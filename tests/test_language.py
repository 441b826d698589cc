"""Texts use plain technical English: the words of a private idiom that operators cannot search for stay out.

Checked are the source (errors, logs, help, docstrings, comments) and the documents. CONTRIBUTING.md has the
rules, docs/glossary.md the terms.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py")) + sorted((ROOT / "src").rglob("*.sh"))
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("deploy/**/*.md")),
]
IDIOM = re.compile(
    r"\b(said|told|nobody|somebody|everybody|whoever|whomever|whatever|laid|lays?|laying|"
    r"mend(s|ed|ing)?|deeds?|stranger|shall)\b|(?<!there )\bis no (?!longer\b)[a-z]+",
    re.IGNORECASE,
)


def idioms(text: str) -> list[str]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if IDIOM.search(line.replace("laid.json", "")):  # the changelog names the old file
            found.append(f"{number}: {line.strip()}")
    return found


@pytest.mark.parametrize("path", SOURCES + DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_texts_are_free_of_idiom(path: Path) -> None:
    """The message lists each line that needs plainer words."""
    assert idioms(path.read_text()) == []


def test_an_idiom_is_noticed() -> None:
    """The check above can fail."""
    assert idioms("the plan is laid\nnobody said so\nthere is no longer a route") == [
        "1: the plan is laid",
        "2: nobody said so",
    ]
