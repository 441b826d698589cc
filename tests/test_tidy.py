"""The rules of the house, checked on the source itself: who may know whom, and what has to be said."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "bootbridge"
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# Which rooms each room may import from, besides itself.
EVERYWHERE = {"bounds", "errors", "__init__"}
MAY_IMPORT: dict[str, set[str]] = {
    "bounds": set(),
    "errors": set(),
    "metrics": set(),
    "options": set(),
    "__init__": set(),
    "common": set(),
    "wire": set(),
    "ports": {"wire"},
    "tunnel": {"wire", "ports", "metrics"},
    "runtime": {"wire", "ports", "metrics", "common"},
    "kube": {"runtime", "common"},
    "trust": {"runtime", "wire", "common"},
    "image": set(),
    "proxy_server": {"wire", "ports", "tunnel", "runtime", "metrics", "kube", "options"},
    "proxy_agent": {"wire", "ports", "tunnel", "runtime", "metrics", "kube", "options"},
    "bootstrap": {"trust", "kube", "runtime", "wire", "common"},
    "join_api": {"trust", "runtime", "common", "wire"},
    "metadata": {"join_api", "trust", "runtime", "common"},
    "join_service": {"join_api", "metadata", "trust", "kube", "runtime", "wire", "common"},
    "node": {"join_api", "metadata", "bootstrap", "trust", "kube", "runtime", "wire", "common"},
}
for top in ("demo", "lab", "cli"):
    MAY_IMPORT[top] = set(MAY_IMPORT) - {"demo", "lab", "cli"} | {"demo", "lab"}
# The one module of `node` that knows the join service: an init deploys it into the new cluster.
EXCEPTIONS = {"node/init/join_service_setup.py": {"join_service"}}
# What the rooms without I/O must not touch: the outside, the clock, chance, and logs.
OUTSIDE = {"asyncio", "socket", "ssl", "select", "selectors", "threading", "subprocess", "os", "signal"}
FORBIDDEN_IN_CORES = OUTSIDE | {"time", "datetime", "logging", "random", "secrets", "uuid"}
CORES = ("wire/", "ports/", "tunnel/")
ALLOWED_IN_CORES = {"random.Random"}  # handed in, seeded by whoever owns the core
LINES_MAX = 600
SPAWNER = "runtime/tasks.py"


def parsed(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(), module)


def imports_of(module: str) -> Iterator[str]:
    """Every dotted name that a module imports, anywhere in it, `from a import b` as `a.b`."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str:
    return module.removesuffix(".py").partition("/")[0]


def rooms_known_by(module: str) -> set[str]:
    """The rooms of our own package that a module imports from."""
    found = set()
    for name in imports_of(module):
        first, _, rest = name.partition(".")
        if first == "bootbridge":
            room = rest.partition(".")[0]
            found.add(room if (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").exists() else "__init__")
    return found


def test_there_is_something_to_check() -> None:
    """A tidy test that looks into an empty house is always content."""
    assert {"wire/http2_connection.py", "tunnel/proxy_core.py", SPAWNER} <= set(MODULES)


def test_every_room_has_its_rule() -> None:
    """A new room is first given its place among the others."""
    assert {room_of(module) for module in MODULES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    """wire ← tunnel ← runtime ← proxy_* ← cli; kube and trust know only runtime; leaves know nobody."""
    room = room_of(module)
    allowed = MAY_IMPORT[room] | EXCEPTIONS.get(module, set())
    assert rooms_known_by(module) - EVERYWHERE - {room} <= allowed


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith(CORES)])
def test_the_cores_touch_neither_the_outside_nor_time_nor_chance(module: str) -> None:
    """Protocol logic is driven by its caller, so that the simulator can be that caller."""
    touched = {name for name in imports_of(module) if name.partition(".")[0] in FORBIDDEN_IN_CORES}
    assert touched <= ALLOWED_IN_CORES


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith(CORES)])
def test_the_cores_draw_no_seed_of_their_own(module: str) -> None:
    """Random() without a seed would make a run that cannot be replayed."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Random":
            assert node.args, f"{module}:{node.lineno} makes an unseeded Random"


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is_for(module: str) -> None:
    """In a docstring; a package without content needs none."""
    tree = parsed(module)
    assert not tree.body or ast.get_docstring(tree)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_too_long(module: str) -> None:
    """A file that grows beyond the limit has more than one reason to exist."""
    assert len((PACKAGE / module).read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("module", [module for module in MODULES if module != SPAWNER])
def test_tasks_are_started_in_one_place(module: str) -> None:
    """Where each gets a name, a reference that keeps it alive, and somebody who hears of its failure."""
    spawning = {"create_task", "ensure_future"}
    for node in ast.walk(parsed(module)):
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        assert name not in spawning, f"{module}:{node.lineno} calls {name}; {SPAWNER} does that"  # type: ignore[attr-defined]
