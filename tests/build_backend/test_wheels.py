"""What `pip install` builds from the source: compiled where it can be, else plain Python with a reason."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import termios
import zipfile
from pathlib import Path

import pytest

import build_backend
from bootbridge import __version__
from build_backend import c_compiler
from tests.support.source_tree import copy_source_tree
from tests.support.terminal import PseudoTerminal

PURE = f"bootbridge-{__version__}-py3-none-any.whl"
RECORD = "bootbridge/not-compiled.txt"
NO_COMPILER = "no C compiler: /none/gcc not found (on Debian: apt-get install gcc python3-dev)"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_source_tree(tmp_path_factory.mktemp("source") / "tree")


def pip_wheel(tree: Path, output: Path) -> list[str]:
    return [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(output), str(tree)]


def environment(**more: str) -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name not in ("CC", build_backend.VARIABLE)
    } | more


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/none/gcc")
    monkeypatch.delenv(build_backend.VARIABLE, raising=False)


@pytest.mark.slow
def test_without_a_compiler_a_person_at_the_terminal_reads_the_reason(tree: Path, tmp_path: Path) -> None:
    """pip shows nothing of what a build prints; the line goes to the terminal, and into the wheel."""
    terminal = PseudoTerminal(100)
    subprocess.run(
        pip_wheel(tree, tmp_path),
        env=environment(CC="/none/gcc"),
        stdin=terminal.out,
        stdout=terminal.out,
        stderr=terminal.out,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        check=True,
    )
    shown = re.findall(r"(?m)^bootbridge: .*", terminal.text())
    assert shown == [f"bootbridge: installed as plain Python, not compiled: {NO_COMPILER}"]
    assert [path.name for path in tmp_path.iterdir()] == [PURE]
    with zipfile.ZipFile(tmp_path / PURE) as wheel:
        assert wheel.read(RECORD).decode() == f"{NO_COMPILER}\n"


@pytest.mark.slow
def test_a_plain_wheel_on_request_says_so_in_its_record_only(tree: Path, tmp_path: Path) -> None:
    """BOOTBRIDGE_COMPILE=0."""
    done = subprocess.run(
        [*pip_wheel(tree, tmp_path), "-v"],
        env=environment(BOOTBRIDGE_COMPILE="0"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "not compiled" not in done.stdout + done.stderr
    with zipfile.ZipFile(tmp_path / PURE) as wheel:
        assert wheel.read(RECORD).decode() == "built with BOOTBRIDGE_COMPILE=0\n"
        assert [name for name in wheel.namelist() if name.endswith(".so")] == []


@pytest.mark.slow
def test_a_required_compilation_that_is_not_possible_fails_with_the_reason(
    tree: Path, tmp_path: Path
) -> None:
    """BOOTBRIDGE_COMPILE=1: one sentence, no traceback, no wheel."""
    done = subprocess.run(
        pip_wheel(tree, tmp_path),
        env=environment(BOOTBRIDGE_COMPILE="1", CC="/none/gcc"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"bootbridge: BOOTBRIDGE_COMPILE=1: {NO_COMPILER}" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_wheel_for_another_python_is_refused_with_its_name(tree: Path, tmp_path: Path) -> None:
    """pip reads the tag, so that no modules are installed that this Python cannot load."""
    subprocess.run(
        pip_wheel(tree, tmp_path),
        env=environment(BOOTBRIDGE_COMPILE="0"),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    other = tmp_path / PURE.replace("py3-none-any", "cp310-cp310-manylinux_2_17_x86_64")
    (tmp_path / PURE).rename(other)
    command = [*PIP, "install", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(other)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{other.name} is not a supported wheel on this platform" in done.stderr


@pytest.mark.usefixtures("without_compiler")
def test_mypy_is_required_only_where_it_can_compile(monkeypatch: pytest.MonkeyPatch, tree: Path) -> None:
    monkeypatch.chdir(tree)
    assert build_backend.get_requires_for_build_wheel() == []
    monkeypatch.setattr(c_compiler, "problem", lambda: "")
    assert build_backend.get_requires_for_build_wheel() == list(build_backend.COMPILE_REQUIREMENTS)


def test_an_unknown_value_of_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build_backend.VARIABLE, "yes")
    with pytest.raises(SystemExit, match="BOOTBRIDGE_COMPILE: invalid value 'yes'"):
        build_backend.get_requires_for_build_wheel()


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It exists, but cannot build an extension."""
    monkeypatch.setenv("CC", "false")
    assert c_compiler.problem() in (
        "false cannot build a Python extension (pip install -v shows its error)",
        "Python.h not found (on Debian: apt-get install python3-dev)",
    )
