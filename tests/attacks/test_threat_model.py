"""docs/security.md and the tests of this folder name each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ATTACKS = Path(__file__).parent
LISTED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def listed() -> set[tuple[str, str]]:
    return set(LISTED.findall((ROOT / "docs" / "security.md").read_text()))


def existing() -> set[tuple[str, str]]:
    found = set()
    for path in ATTACKS.glob("test_*.py"):
        if path.name == Path(__file__).name:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add((path.name, node.name))
    return found


def test_every_attack_is_in_the_threat_model() -> None:
    """A row of docs/security.md names the test as `test_file.py::test_name`."""
    assert sorted(existing() - listed()) == []


def test_the_threat_model_names_only_tests_that_exist() -> None:
    """A renamed test is renamed in docs/security.md too."""
    assert sorted(listed() - existing()) == []
