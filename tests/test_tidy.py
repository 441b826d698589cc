"""Structure of the source: which package may import which, what the cores must not use, how modules look."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "bootbridge"
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# The map of ARCHITECTURE.md: which packages each package may import from, besides itself.
EVERYWHERE = {"bounds", "errors", "installation", "__init__"}
MAY_IMPORT: dict[str, set[str]] = {
    "bounds": set(),
    "errors": set(),
    "installation": set(),
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
    "top": {"common"},
    "frontend_client": {"wire", "runtime"},
    "status_page": {"runtime", "common"},
    "proxy_server": {
        *("wire", "ports", "tunnel", "runtime", "metrics", "kube", "options", "status_page"),
        "common",  # names of fields
    },
    "proxy_agent": {"wire", "ports", "tunnel", "runtime", "metrics", "kube", "options", "status_page"},
    "bootstrap": {"frontend_client", "top", "trust", "kube", "runtime", "wire", "common"},
    "join_api": {"trust", "runtime", "common", "wire"},
    "metadata": {"join_api", "trust", "runtime", "common"},
    "join_service": {"join_api", "metadata", "trust", "kube", "runtime", "wire", "common"},
    "node": {"join_api", "metadata", "bootstrap", "trust", "kube", "runtime", "wire", "common"},
}
for top in ("demo", "lab", "cli"):
    MAY_IMPORT[top] = set(MAY_IMPORT) - {"demo", "lab", "cli"} | {"demo", "lab"}
# The same inside `bootstrap`, in the order in which data passes through it, and for the packages of `node`.
MAY_IMPORT |= {
    "bootstrap/plan": set(),
    "bootstrap/machine": {"bootstrap/plan"},
    "bootstrap/firewall": {"bootstrap/plan"},
    "bootstrap/render": {"bootstrap/plan", "bootstrap/machine", "bootstrap/firewall"},
    "bootstrap/ignition": {"bootstrap/plan", "bootstrap/render"},
    "bootstrap/install": {f"bootstrap/{part}" for part in ("plan", "machine", "firewall", "render")},
    "bootstrap/diagnose": {
        f"bootstrap/{part}" for part in ("plan", "machine", "firewall", "render", "ignition", "install")
    },
    "node/lock": {"node/init"},
    "node/components": {"node/init"},
    "node/kubeadm": {"node/init", "node/join", "node/components"},
    "node/join": {"node/lock"},
    "node/init": {"node/lock", "node/join", "node/kubeadm"},
}
EXCEPTIONS = {
    # An init deploys the join service into the new cluster.
    "node/init/join_service_setup.py": {"join_service"},
    # The script on the node writes the same receipt as `down`.
    "bootstrap/render/shell/script.py": {"bootstrap/install"},
}
# Packages without I/O must not use the outside world, clocks, randomness or logs.
OUTSIDE = {"asyncio", "socket", "ssl", "select", "selectors", "threading", "subprocess", "os", "signal"}
FORBIDDEN_IN_CORES = OUTSIDE | {"time", "datetime", "logging", "random", "secrets", "uuid"}
CORES = ("wire/", "ports/", "tunnel/")
ALLOWED_IN_CORES = {"random.Random"}  # passed in, with a seed
LINES_MAX = 600
SPAWNER = "runtime/tasks.py"


def parsed(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(), module)


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Returns every dotted name that a module imports, anywhere in it, `from a import b` as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_of(path: str) -> list[str]:
    """Returns the packages with a rule that contain a module: `bootstrap`, and `bootstrap/plan` in it."""
    parts = path.removesuffix(".py").split("/")
    return [name for name in ("/".join(parts[:length]) for length in (1, 2)) if name in MAY_IMPORT]


def violations(module: str, tree: ast.Module) -> set[str]:
    """Returns the packages that a module imports from and must not."""
    own = packages_of(module)
    found = set()
    for name in imports_of(tree):
        first, _, rest = name.partition(".")
        if first != "bootbridge":
            continue
        for package in packages_of(rest.replace(".", "/")) or ["__init__"]:
            peers = own[:1] if "/" not in package else own[1:]
            # Inside one package, rules of its parts apply; between packages, those of the packages.
            if "/" in package and package.partition("/")[0] != own[0]:
                continue
            for mine in peers:
                allowed = MAY_IMPORT[mine] | EVERYWHERE | {mine} | EXCEPTIONS.get(module, set())
                if package not in allowed:
                    found.add(package)
    return found


def test_there_is_something_to_check() -> None:
    """The paths below are right."""
    assert {"wire/http2_connection.py", "tunnel/proxy_core.py", SPAWNER} <= set(MODULES)


def test_every_package_has_a_rule() -> None:
    """A new package first gets a place on the map; so does a new part of `bootstrap`."""
    assert {packages_of(module)[0] for module in MODULES if "/" in module} <= set(MAY_IMPORT)
    parts = {"/".join(module.split("/")[:2]) for module in MODULES if module.count("/") > 1}
    assert {part for part in parts if part.startswith(("bootstrap/", "node/"))} <= set(MAY_IMPORT)


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_map(module: str) -> None:
    assert violations(module, parsed(module)) == set()


@pytest.mark.parametrize(
    ("module", "statement", "package"),
    [
        ("wire/frames.py", "from bootbridge.tunnel.route import AgentRoute", "tunnel"),
        ("runtime/pump.py", "import bootbridge.tunnel.route", "tunnel"),
        ("common/files.py", "from bootbridge.bootstrap.plan import plan", "bootstrap"),
        ("node/join/client.py", "from bootbridge.join_service import service", "join_service"),
        ("join_service/service.py", "from bootbridge.node.join import client", "node"),
        ("bootstrap/plan/plan.py", "from bootbridge.bootstrap.render import manifests", "bootstrap/render"),
        ("node/lock/node_lock.py", "from bootbridge.node.join.client import JoinClient", "node/join"),
    ],
)
def test_an_import_against_the_map_is_noticed(module: str, statement: str, package: str) -> None:
    """The check above can fail."""
    assert violations(module, ast.parse(statement)) == {package}


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith(CORES)])
def test_the_cores_use_no_io_clock_or_randomness(module: str) -> None:
    """Protocol logic is driven by its caller, so that the simulator can be that caller."""
    used = {name for name in imports_of(parsed(module)) if name.partition(".")[0] in FORBIDDEN_IN_CORES}
    assert used <= ALLOWED_IN_CORES


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith(CORES)])
def test_the_cores_create_no_unseeded_random(module: str) -> None:
    """A run with an unseeded Random cannot be replayed."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Random":
            assert node.args, f"{module}:{node.lineno} creates an unseeded Random"


@pytest.mark.parametrize("module", MODULES)
def test_every_module_and_package_has_a_docstring(module: str) -> None:
    assert ast.get_docstring(parsed(module))


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_too_long(module: str) -> None:
    """A module beyond the limit has more than one reason to exist."""
    assert len((PACKAGE / module).read_text().splitlines()) <= LINES_MAX


def test_every_public_class_name_is_used_once() -> None:
    """One name for one thing."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for node in parsed(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("module", [module for module in MODULES if module != SPAWNER])
def test_tasks_are_started_in_one_place(module: str) -> None:
    """There each gets a name, a reference that keeps it alive, and a log line if it fails."""
    spawning = {"create_task", "ensure_future"}
    for node in ast.walk(parsed(module)):
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        assert name not in spawning, f"{module}:{node.lineno} calls {name}; use {SPAWNER}"  # type: ignore[attr-defined]
