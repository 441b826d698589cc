"""Compiles bootbridge for an image, if this installation runs from a source tree and is not compiled.

An installation by pip was compiled already, or could not be; only a source tree has what the build needs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bootbridge import installation
from bootbridge.image.python_runtime import OWN_PACKAGE

SOURCE_TREE = OWN_PACKAGE.parents[1]


@dataclass(frozen=True)
class ModuleSource:
    """The package of bootbridge to copy modules from, and why they are not compiled; empty if they are."""

    directory: Path
    plain_reason: str


def can_compile() -> bool:
    return not installation.COMPILED and (SOURCE_TREE / "build_backend").is_dir()


@contextmanager
def compiled() -> Iterator[ModuleSource]:
    """Yields compiled modules if possible, else plain ones; they exist until the end of the block."""
    if not can_compile():
        yield ModuleSource(OWN_PACKAGE, installation.plain_reason())
        return
    with tempfile.TemporaryDirectory(prefix="bootbridge-image-") as scratch:
        problem = _build(Path(scratch))
        yield ModuleSource(OWN_PACKAGE if problem else Path(scratch, "bootbridge"), problem)


@contextmanager
def plain() -> Iterator[ModuleSource]:
    """Yields plain modules, also if this installation is compiled."""
    with tempfile.TemporaryDirectory(prefix="bootbridge-image-") as scratch:
        target = Path(scratch, "bootbridge")
        shutil.copytree(OWN_PACKAGE, target, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        yield ModuleSource(target, "--plain")


def _build(scratch: Path) -> str:
    """Builds a compiled wheel of the source tree and unpacks it; returns the reason if that failed."""
    # Without isolation pip uses the packages of a development environment, which are there and locked.
    isolation = ["--no-build-isolation"] if _is_installed("mypy", "setuptools") else []
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, *isolation, "-w", str(scratch), str(SOURCE_TREE)],
        env=os.environ | {"BOOTBRIDGE_COMPILE": "1"},
        capture_output=True,
        text=True,
    )
    wheel = next(scratch.glob("*.whl"), None)
    if done.returncode or wheel is None:
        lines = [line.strip() for line in done.stderr.splitlines() if "bootbridge: " in line]
        reason = lines[-1].partition("bootbridge: ")[2] if lines else "pip wheel failed (run: make wheel)"
        return reason.removeprefix("BOOTBRIDGE_COMPILE=1: ")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch)
    return ""


def _is_installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) for name in names)
