"""Exports the commit that is released: exactly its files, with modes and times that no clone changes."""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from release.commands import ReleaseError, run


@dataclass(frozen=True)
class Source:
    """The files of one commit in a directory."""

    directory: Path
    commit: str
    time: int  # of the commit, in seconds since 1970
    version: str


def export(root: Path, target: Path) -> Source:
    """Writes the files of HEAD to `target`; raises if the work tree differs from it."""
    changed = run(["git", "status", "--porcelain"], directory=root)
    if changed:
        raise ReleaseError(f"uncommitted changes (commit or remove them):\n{changed.rstrip()}")
    commit = run(["git", "rev-parse", "HEAD"], directory=root).strip()
    command = ["git", "-c", "tar.umask=0022", "archive", "--format=tar", commit]
    packed = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        # Python 3.11.2 of Debian 12 has no filters.
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        tar.extractall(target)
    time = int(run(["git", "show", "--no-patch", "--format=%ct", commit], directory=root))
    return Source(target, commit, time, version(target))


def version(directory: Path) -> str:
    tree = ast.parse((directory / "src/bootbridge/__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise ReleaseError("src/bootbridge/__init__.py: __version__ not found")
