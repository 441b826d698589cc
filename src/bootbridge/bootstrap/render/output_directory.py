"""Writes rendered files to a directory, atomically, and reads them back.

A record in the directory contains the digests of the rendered files. By it, a second render recognises files
that the operator has edited, and keeps them unless `force` is set.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bootbridge.common.files import Asset, Tree, read_file, write_error, write_file
from bootbridge.errors import OperatorError

RECORD = ".bootbridge-render.json"
WRITTEN, UNCHANGED, KEPT, REMOVED = "written", "unchanged", "kept", "removed"
_VERSION = 1


@dataclass(frozen=True)
class FileResult:
    path: str
    mode: int
    state: str


def write(tree: Tree, directory: Path, *, force: bool = False) -> list[FileResult]:
    """Writes the tree (relative paths) to the directory. Other files in it stay."""
    directory = directory.resolve()
    if directory == Path.cwd() or directory in Path.cwd().parents:
        hint = "give a subdirectory: the directory is replaced as a whole"
        raise OperatorError("current directory not allowed", subject="--output", hint=hint)
    recorded = _recorded(directory)
    results = _decide(tree, directory, recorded, force)
    temporary = _temporary_directory(directory)
    try:
        building = temporary / "new"
        _copy(directory, building)
        _apply(tree, results, building)
        digests = {path: _digest(asset.data) for path, asset in tree.items()}
        write_file(building / RECORD, Asset(_dump(digests)))
        _swap(building, directory, temporary / "old")
    except OSError as error:
        raise write_error(directory, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return results


def read(directory: Path) -> Tree:
    """Returns the rendered files (relative paths) with the operator's edits."""
    recorded = _recorded(directory)
    if not recorded:
        hint = "create it with 'bootbridge render --output'"
        raise OperatorError("no rendered files found", subject=str(directory), hint=hint)
    found = {}
    for path in sorted(recorded):
        file = directory / path
        found[path] = Asset(read_file(file, str(directory)), file.stat().st_mode & 0o777)
    return found


# --- the record


def _recorded(directory: Path) -> Mapping[str, str]:
    """Returns digests by path of an earlier render. Raises if the directory has other content."""
    if not directory.exists():
        return {}
    if not directory.is_dir():
        raise OperatorError(f"not a directory: {directory}", subject="--output")
    record = directory / RECORD
    if record.exists():
        return _load(read_file(record, "--output"), record)
    if any(directory.iterdir()):
        hint = "give a new or empty directory, or the one of an earlier render"
        raise OperatorError(f"directory not empty: {directory}", subject="--output", hint=hint)
    return {}


def _load(data: bytes, name: Path) -> Mapping[str, str]:
    try:
        document = json.loads(data)
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r}")
        digests = {str(path): str(digest) for path, digest in document["sha256"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "remove the directory, or give another one"
        raise OperatorError(f"invalid render record {name}", subject="--output", hint=hint) from error
    if any(path.startswith("/") or ".." in path.split("/") for path in digests):
        raise OperatorError(f"path outside the directory in {name}", subject="--output")
    return digests


def _dump(digests: Mapping[str, str]) -> bytes:
    return (json.dumps({"version": _VERSION, "sha256": digests}, indent=2, sort_keys=True) + "\n").encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- decisions


def _decide(tree: Tree, directory: Path, recorded: Mapping[str, str], force: bool) -> list[FileResult]:
    results = [
        FileResult(path, asset.mode, _state(asset, directory / path, recorded.get(path), force))
        for path, asset in sorted(tree.items())
    ]
    for path in sorted(recorded.keys() - tree.keys()):
        file = directory / path
        if file.is_file():
            changed = _digest(file.read_bytes()) != recorded[path]
            results.append(FileResult(path, file.stat().st_mode & 0o777, KEPT if changed else REMOVED))
    return results


def _state(asset: Asset, file: Path, recorded: str | None, force: bool) -> str:
    if not file.is_file():
        return WRITTEN
    present = file.read_bytes()
    if present == asset.data and file.stat().st_mode & 0o777 == asset.mode:
        return UNCHANGED
    edited = _digest(present) != recorded and present != asset.data
    return KEPT if edited and not force else WRITTEN


# --- writing


def _temporary_directory(directory: Path) -> Path:
    """Creates a temporary directory beside the target, so that a rename suffices."""
    parent = directory.parent
    try:
        return Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=parent))
    except OSError as error:
        raise write_error(parent, error) from error


def _copy(directory: Path, building: Path) -> None:
    if directory.exists():
        shutil.copytree(directory, building, symlinks=True)
    else:
        building.mkdir()


def _apply(tree: Tree, results: list[FileResult], building: Path) -> None:
    for result in results:
        target = building / result.path
        if result.state == REMOVED:
            target.unlink()
            _remove_empty_parents(target.parent, building)
        elif result.state == WRITTEN:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_file(target, tree[result.path])


def _remove_empty_parents(directory: Path, top: Path) -> None:
    while directory != top and not any(directory.iterdir()):
        directory.rmdir()
        directory = directory.parent


def _swap(building: Path, directory: Path, old: Path) -> None:
    """Replaces the old directory with the new one. Restores the old one on failure."""
    if not directory.exists():
        os.rename(building, directory)
        return
    os.rename(directory, old)
    try:
        os.rename(building, directory)
    except BaseException:
        os.rename(old, directory)
        raise
