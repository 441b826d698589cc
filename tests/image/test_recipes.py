"""Every image contains the modules of bootbridge that its commands import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bootbridge
from bootbridge.image import recipes
from bootbridge.lab import images

PACKAGE = Path(bootbridge.__file__).parent
TUNNEL_COMMANDS = ("cli/agent.py", "cli/server.py")
JOIN_SERVICE_COMMAND = ("cli/join_service.py",)
WEBHOOK_COMMANDS = ("lab/extension_server.py", "lab/archiver.py")


def imported_by(*starts: str) -> set[str]:
    """Returns the modules of bootbridge that are imported, also transitively and lazily."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        module = waiting.pop()
        if module in found or not (PACKAGE / module).exists():
            continue
        found.add(module)
        for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                if name.split(".")[0] == "bootbridge":
                    path = "/".join(name.split(".")[1:])
                    waiting += [f"{path}.py", f"{path}/__init__.py".lstrip("/")]
    return found


@pytest.mark.parametrize(
    ("modules", "commands"),
    [
        (recipes.TUNNEL_MODULES, TUNNEL_COMMANDS),
        (recipes.NODE_MODULES, JOIN_SERVICE_COMMAND),
        (images.WEBHOOK_MODULES, WEBHOOK_COMMANDS),
    ],
    ids=["tunnel", "node", "webhook"],
)
def test_image_contains_every_imported_module(modules: frozenset[str], commands: tuple[str, ...]) -> None:
    imported = imported_by(*commands)
    assert imported >= set(commands)
    assert {module for module in imported if not {module, module.partition("/")[0]} & set(modules)} == set()
