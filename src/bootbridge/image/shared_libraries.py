"""Finds the shared libraries that programs need, with ldd."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bootbridge.errors import OperatorError

_FOUND = re.compile(r"^\s*(\S+) => (/\S+) \(0x")
_MISSING = re.compile(r"^\s*(\S+) => not found")
_LOADER = re.compile(r"^\s*(/\S*ld-\S+) \(0x")
# ldd takes many files at once; this keeps the command line short.
_BATCH = 50


@dataclass(frozen=True)
class Libraries:
    """The path of each library on this machine, and the path of the dynamic loader."""

    files: dict[str, Path]
    loader: str


def needed_by(programs: Iterable[Path]) -> Libraries:
    """Returns all shared libraries that these programs and modules load."""
    files: dict[str, Path] = {}
    loader = ""
    paths = sorted(set(programs))
    for start in range(0, len(paths), _BATCH):
        for line in _ldd(paths[start : start + _BATCH]):
            if missing := _MISSING.match(line):
                hint = "install the package that contains it"
                raise OperatorError("shared library not found", subject=missing[1], hint=hint)
            if found := _FOUND.match(line):
                files[found[1]] = Path(found[2]).resolve()
            elif found := _LOADER.match(line):
                loader = found[1]
    if not loader:
        raise OperatorError("dynamic loader not found", hint="use an interpreter that is built for glibc")
    return Libraries(files, loader)


def _ldd(paths: Sequence[Path]) -> list[str]:
    try:
        done = subprocess.run(["ldd", *map(str, paths)], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise OperatorError(
            "command not found", subject="ldd", hint="install libc-bin or glibc-common"
        ) from None
    return done.stdout.splitlines()
