"""The units of deploy/systemd: systemd finds no mistake, and our own parsers accept every command line."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bootbridge.cli import node
from bootbridge.cli.agent_flags import FLAGS as AGENT_FLAGS
from bootbridge.cli.command import Command
from bootbridge.cli.main import COMMAND
from bootbridge.cli.pflags import FlagSet
from bootbridge.cli.reference.man import pages
from bootbridge.cli.reference.specification import specifications
from bootbridge.cli.server_flags import FLAGS as SERVER_FLAGS
from tests.support.not_run import not_run
from tests.support.process_program import ROOT
from tests.support.systemd import PREFIX, PROGRAMS, SERVICES, TIMERS, UNITS, command_line, settings

OPERATING = ROOT / "docs" / "operating.md"
TARGETS = Path("/lib/systemd/system")
SECONDS = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system with this machine's targets, our units, and something where the programs would be."""
    if shutil.which("systemd-analyze") is None:
        not_run("missing systemd-analyze: apt-get install systemd")
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for path in UNITS.iterdir():
        shutil.copy(path, units)
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    for path in TARGETS.glob("*.target"):
        shutil.copy(path, tmp_path / "usr/lib/systemd/system", follow_symlinks=False)
    (tmp_path / "lib").symlink_to("usr/lib")
    programs = tmp_path / PREFIX.lstrip("/") / "bin"
    programs.mkdir(parents=True)
    for name in PROGRAMS:
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    return tmp_path


def analyze(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = ["systemd-analyze", *words, f"--root={root}"]
    return subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=SECONDS)


def verify(root: Path) -> str:
    """Returns what systemd complains about."""
    units = [str(root / "etc/systemd/system" / name) for name in (*SERVICES, *TIMERS)]
    done = analyze(root, "verify", "--man=no", *units)
    return done.stderr or ("" if done.returncode == 0 else f"exit code {done.returncode}")


def test_systemd_finds_no_mistake(root: Path) -> None:
    assert verify(root) == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("NoNewPrivileges", "NoNewPrivilege"),
        ("Restart=always", "Restart=sometimes"),
        ("Type=exec", "Type=exe"),
        (f"{PREFIX}/bin/proxy-server", f"{PREFIX}/bin/server"),
    ],
)
def test_a_mistake_is_found(root: Path, before: str, after: str) -> None:
    """Proves that the test above can fail."""
    unit = root / "etc/systemd/system/bootbridge-server.service"
    assert before in unit.read_text()
    unit.write_text(unit.read_text().replace(before, after))
    assert "bootbridge-server.service" in verify(root)


@pytest.mark.parametrize("unit", SERVICES)
def test_exposure_is_at_most_that_of_the_documentation(root: Path, unit: str) -> None:
    """By `systemd-analyze security`: 0 is closed, 10 is open. docs/operating.md has the figures."""
    found = re.search(rf"^\| `{re.escape(unit)}` \|.*\| ([0-9.]+) \|$", OPERATING.read_text(), re.MULTILINE)
    assert found, f"{unit} is not in the table of {OPERATING.name}"
    threshold = round(float(found[1]) * 10)
    words = ("security", "--offline=true", "--no-pager", unit)
    done = analyze(root, *words, f"--threshold={threshold}")
    assert done.returncode == 0, done.stdout[-400:] + done.stderr
    assert analyze(root, *words, f"--threshold={threshold - 1}").returncode != 0, "less: change the figure"


def test_the_documentation_installs_every_file() -> None:
    text = OPERATING.read_text()
    for path in UNITS.iterdir():
        assert f"`{path.name}`" in text, path.name


@pytest.mark.parametrize(
    ("unit", "name", "flags"),
    [
        ("bootbridge-server.service", "proxy-server", SERVER_FLAGS),
        ("bootbridge-agent.service", "proxy-agent", AGENT_FLAGS),
    ],
    ids=["server", "agent"],
)
def test_flags_of_the_proxies_are_parsed(unit: str, name: str, flags: FlagSet) -> None:
    """With those of the example of the environment file; each is set once."""
    program, *words = command_line(unit)
    assert program == f"{PREFIX}/bin/{name}"
    parsed = flags.parse(words)
    assert parsed.positionals == []
    assert parsed.deprecations == []
    assert len(parsed.fields) == len(words) > 4


@pytest.mark.parametrize(
    ("unit", "verb"), [("bootbridge-node.service", "run"), ("bootbridge-node-renew.service", "renew")]
)
def test_flags_of_the_node_commands_are_parsed(unit: str, verb: str) -> None:
    program, group, name, *words = command_line(unit)
    assert (program, group, name) == (f"{PREFIX}/bin/bootbridge", "node", verb)
    command = node.COMMAND.commands()[name]
    assert isinstance(command, Command)
    assert command.parser(f"bootbridge node {name}").parse_args(words).config == node.CONFIGURATION


def test_every_service_is_parsed_above() -> None:
    assert SERVICES == [
        "bootbridge-agent.service",
        "bootbridge-node-renew.service",
        "bootbridge-node.service",
        "bootbridge-server.service",
    ]


@pytest.mark.parametrize("unit", [*SERVICES, *TIMERS])
def test_documentation_is_a_manual_page_that_exists(unit: str) -> None:
    """`bootbridge man --output` writes them."""
    [page] = settings(unit)["Documentation"]
    assert re.sub(r"man:(.+)\((\d)\)", r"\1.\2", page) in pages(specifications(COMMAND))
