"""Files as values: a tree of what shall lie where, and the few lines that put it on a disk.

Rendering gives `{path: Asset}`; nothing is written before all of it is known.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bootbridge.errors import OperatorError


@dataclass(frozen=True)
class Asset:
    """What a file holds, and who may read it. The content stays out of `repr`: it may be a key."""

    data: bytes = field(repr=False)
    mode: int = 0o644


# Absolute paths on the node, or paths relative to an asset directory.
Tree = Mapping[str, Asset]


def write_file(path: Path, asset: Asset) -> None:
    """Put the file there whole or not at all; its content is never readable beyond `asset.mode`."""
    write_whole(path, asset.data, lambda descriptor: os.fchmod(descriptor, asset.mode))


def write_whole(path: Path, data: bytes, finish: Callable[[int], None]) -> None:
    """The same, with whatever `finish` does to the open file before it takes its place."""
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
        _forget(temporary)
        raise unwritable(path, error) from error
    except BaseException:
        _forget(temporary)
        raise


def read_file(path: Path | str, subject: str = "") -> bytes:
    """The content, or one clear line naming the flag or file at fault."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror or error}", subject=subject) from error


def unwritable(path: Path, error: OSError) -> OperatorError:
    hint = "check that the directory exists, is writable and has space"
    return OperatorError(f"cannot write {path}: {error.strerror or error}", hint=hint)


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
