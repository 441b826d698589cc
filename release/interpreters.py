"""Finds the interpreters of this machine that wheels are built for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from release.commands import ReleaseError

# The interpreter behind a virtual environment, not the environment's link to it.
_PRINT = """
import platform, sys
path = getattr(sys, "_base_executable", sys.executable)
print("%d.%d" % sys.version_info[:2], platform.python_version(), path)
"""


@dataclass(frozen=True)
class Interpreter:
    version: str  # 3.11
    release: str  # 3.11.7
    path: Path


def supported(root: Path) -> list[str]:
    """Returns the releases of Python that pyproject.toml names, the oldest first."""
    classifiers = tomllib.loads((root / "pyproject.toml").read_text())["project"]["classifiers"]
    return re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(classifiers))


def given(paths: Iterable[str]) -> list[Interpreter]:
    """Returns these interpreters; raises if one cannot be used."""
    found = []
    for path in paths:
        interpreter = _ask(path)
        if interpreter is None:
            raise ReleaseError(f"--python {path}: not a working Python (give the path of an interpreter)")
        found.append(interpreter)
    return found


def at_hand(versions: Iterable[str]) -> list[Interpreter]:
    """Returns one interpreter of each version that PATH or pyenv has."""
    return [found for version in versions if (found := _find(version)) is not None]


def _find(version: str) -> Interpreter | None:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    candidates = [
        shutil.which(f"python{version}"),
        *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True),
    ]
    for candidate in candidates:
        found = _ask(str(candidate)) if candidate else None
        if found is not None and found.version == version:
            return found
    return None


def _ask(path: str) -> Interpreter | None:
    try:
        done = subprocess.run(
            [path, "-I", "-c", _PRINT], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return None
    words = done.stdout.split()
    return (
        Interpreter(words[0], words[1], Path(words[2])) if done.returncode == 0 and len(words) == 3 else None
    )
