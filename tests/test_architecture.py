"""ARCHITECTURE.md and the other documents name things that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "bootbridge"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("deploy/**/*.md")),
]
PACKAGES = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
WALKS = ("a DATA byte", "`up`", "`inject`", "`node run`", "a ticket")
STEPS_MIN = 5

STEP = re.compile(r"^\d+\. ", re.MULTILINE)
QUOTED = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"[a-z_]+(\.\w+)+")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def walks() -> dict[str, str]:
    """Returns the text of each walk by its title."""
    parts = re.split(r"^### Walk: (.+)$", TEXT, flags=re.MULTILINE)[1:]
    return {title: text.split("\n## ")[0] for title, text in zip(parts[::2], parts[1::2], strict=True)}


def steps(walk: str) -> Iterator[str]:
    return iter(STEP.split(walk)[1:])


def names(text: str) -> Iterator[str]:
    """Returns the quoted dotted names that start with one of our packages."""
    for quoted in QUOTED.findall(text):
        name = quoted.removesuffix("()")
        if (
            DOTTED.fullmatch(name)
            and name.partition(".")[0] in PACKAGES
            and not name.endswith((".py", ".sh"))
        ):
            yield name


@cache
def defined(module: Path) -> frozenset[str]:
    """Returns the functions, classes, methods and constants of a module, methods as `Class.method`."""
    found = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(f"{node.name}.{item.name}")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


def exists(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:length])
        rest = ".".join(parts[length:])
        for module in (path.with_suffix(".py"), path / "__init__.py"):
            if module.is_file():
                return not rest or rest in defined(module)
    return False


def test_the_five_walks_are_described_step_by_step() -> None:
    """Each walk has numbered steps, and every step names the code that performs it."""
    found = walks()
    assert [title for title in WALKS if not any(title in each for each in found)] == []
    for title, walk in found.items():
        described = list(steps(walk))
        assert len(described) >= STEPS_MIN, title
        assert [step for step in described if not list(names(step))] == [], title


@pytest.mark.parametrize("name", sorted(set(names(TEXT))))
def test_every_name_in_the_architecture_exists(name: str) -> None:
    """A renamed or deleted function fails here, so that the walks stay true."""
    assert exists(name)


def test_a_name_that_does_not_exist_is_noticed() -> None:
    """The check above can fail."""
    assert not exists("tunnel.route.AgentRoute.no_such_method")
    assert not exists("tunnel.no_such_module")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_resolve(document: Path) -> None:
    """Every relative link leads to a file of this repository."""
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_in_documents_exist(document: Path) -> None:
    """A source file named in a document exists, from the root of the repository or of the package."""
    for quoted in QUOTED.findall(document.read_text()):
        if re.fullmatch(r"[\w./-]+/[\w./-]+\.(py|sh|jq)", quoted) and not quoted.startswith("/"):
            assert (ROOT / quoted).exists() or (PACKAGE / quoted).exists(), quoted
