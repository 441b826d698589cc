"""A directory with a rendered tree: written whole or not at all, changed by its reader, written again.

A small record in the directory says what was rendered, by digest. So a second render knows
which files the reader has changed since: those are kept unless they shall be overwritten.
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
    """What became of one file."""

    path: str
    mode: int
    state: str


def write(tree: Tree, directory: Path, *, force: bool = False) -> list[FileResult]:
    """Make the directory hold the tree (paths relative to it); files that were never ours stay."""
    directory = directory.resolve()
    if directory == Path.cwd() or directory in Path.cwd().parents:
        hint = "give one below it: the directory is replaced as a whole"
        raise OperatorError("cannot be the directory you are in", subject="--output", hint=hint)
    recorded = _recorded(directory)
    outcomes = _decide(tree, directory, recorded, force)
    workshop = _workshop(directory)
    try:
        building = workshop / "new"
        _copy(directory, building)
        _apply(tree, outcomes, building)
        digests = {path: _digest(asset.data) for path, asset in tree.items()}
        write_file(building / RECORD, Asset(_dump(digests)))
        _exchange(building, directory, workshop / "old")
    except OSError as error:
        raise write_error(directory, error) from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return outcomes


def read(directory: Path) -> Tree:
    """The rendered tree as its reader left it: paths relative to the directory."""
    recorded = _recorded(directory)
    if not recorded:
        hint = "make one with 'bootbridge render --output'"
        raise OperatorError("holds no rendered tree", subject=str(directory), hint=hint)
    found = {}
    for path in sorted(recorded):
        file = directory / path
        found[path] = Asset(read_file(file, str(directory)), file.stat().st_mode & 0o777)
    return found


# --- what there is


def _recorded(directory: Path) -> Mapping[str, str]:
    """Digests by path from an earlier render; an error where the directory is somebody else's."""
    if not directory.exists():
        return {}
    if not directory.is_dir():
        raise OperatorError(f"{directory} is no directory", subject="--output")
    record = directory / RECORD
    if record.exists():
        return _load(read_file(record, "--output"), record)
    if any(directory.iterdir()):
        hint = "give a new or an empty directory, or one from an earlier render"
        raise OperatorError(f"{directory} holds files that are not ours", subject="--output", hint=hint)
    return {}


def _load(data: bytes, name: Path) -> Mapping[str, str]:
    try:
        document = json.loads(data)
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r}")
        digests = {str(path): str(digest) for path, digest in document["sha256"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "remove the directory, or give another"
        raise OperatorError(f"{name} is no record of a render", subject="--output", hint=hint) from error
    if any(path.startswith("/") or ".." in path.split("/") for path in digests):
        raise OperatorError(f"{name} names files outside of the directory", subject="--output")
    return digests


def _dump(digests: Mapping[str, str]) -> bytes:
    return (json.dumps({"version": _VERSION, "sha256": digests}, indent=2, sort_keys=True) + "\n").encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- what shall become of it


def _decide(tree: Tree, directory: Path, recorded: Mapping[str, str], force: bool) -> list[FileResult]:
    outcomes = [
        FileResult(path, asset.mode, _fate(asset, directory / path, recorded.get(path), force))
        for path, asset in sorted(tree.items())
    ]
    for path in sorted(recorded.keys() - tree.keys()):
        file = directory / path
        if file.is_file():
            changed = _digest(file.read_bytes()) != recorded[path]
            outcomes.append(FileResult(path, file.stat().st_mode & 0o777, KEPT if changed else REMOVED))
    return outcomes


def _fate(asset: Asset, file: Path, recorded: str | None, force: bool) -> str:
    if not file.is_file():
        return WRITTEN
    present = file.read_bytes()
    if present == asset.data and file.stat().st_mode & 0o777 == asset.mode:
        return UNCHANGED
    theirs = _digest(present) != recorded and present != asset.data
    return KEPT if theirs and not force else WRITTEN


# --- doing it


def _workshop(directory: Path) -> Path:
    """A place beside the directory, so that renaming is enough in the end."""
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


def _apply(tree: Tree, outcomes: list[FileResult], building: Path) -> None:
    for outcome in outcomes:
        target = building / outcome.path
        if outcome.state == REMOVED:
            target.unlink()
            _remove_empty_parents(target.parent, building)
        elif outcome.state == WRITTEN:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_file(target, tree[outcome.path])


def _remove_empty_parents(directory: Path, top: Path) -> None:
    while directory != top and not any(directory.iterdir()):
        directory.rmdir()
        directory = directory.parent


def _exchange(building: Path, directory: Path, old: Path) -> None:
    """Put the new directory in the old one's place; if that fails, the old one is back."""
    if not directory.exists():
        os.rename(building, directory)
        return
    os.rename(directory, old)
    try:
        os.rename(building, directory)
    except BaseException:
        os.rename(old, directory)
        raise
