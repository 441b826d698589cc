"""Files as values (`Asset`, `Tree`), and atomic writes.

Rendering returns a `Tree`; nothing is written before all of it is known.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bootbridge.errors import OperatorError


@dataclass(frozen=True)
class Asset:
    """A file's content and mode. The content is not in `repr`: it may be a key."""

    data: bytes = field(repr=False)
    mode: int = 0o644


# Absolute paths on the node, or paths relative to an asset directory.
Tree = Mapping[str, Asset]


def write_file(path: Path, asset: Asset) -> None:
    """Writes the file atomically; its content is never readable beyond `asset.mode`."""
    write_atomically(path, asset.data, lambda descriptor: os.fchmod(descriptor, asset.mode))


def write_atomically(path: Path, data: bytes, finish: Callable[[int], None]) -> None:
    """Writes to a temporary file, calls `finish` with its descriptor, syncs, and renames it to `path`."""
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            finish(file.fileno())
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        _unlink(temporary)
        raise write_error(path, error) from error
    except BaseException:
        _unlink(temporary)
        raise


def rewrite_file(path: Path, data: bytes, like: Path) -> None:
    """Replaces the content atomically; keeps mode and owner, or copies those of `like` to a new file."""
    target = path.resolve()  # a link stays a link
    try:
        model = (target if target.exists() else like).stat()
    except OSError as error:
        raise write_error(path, error) from error
    write_atomically(target, data, partial(_copy_owner_and_mode, model))


def _copy_owner_and_mode(model: os.stat_result, descriptor: int) -> None:
    try:
        os.fchown(descriptor, model.st_uid, model.st_gid)
    except PermissionError:
        pass  # only root may change the owner; the new file then belongs to the caller
    os.fchmod(descriptor, stat.S_IMODE(model.st_mode))


def read_file(path: Path | str, subject: str = "") -> bytes:
    """Returns the content; raises OperatorError about `subject`, the flag or field that named the file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror or error}", subject=subject) from error


def write_error(path: Path, error: OSError) -> OperatorError:
    hint = "check that the directory exists, is writable and has space"
    return OperatorError(f"cannot write {path}: {error.strerror or error}", hint=hint)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
