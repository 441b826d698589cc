"""Gives a file another content, whole or not at all, and leaves whose it is and who may read it as it was."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from bootbridge.bootstrap.files import unwritable


def rewrite(path: Path, data: bytes, like: Path) -> None:
    """Put `data` there; mode and owner are the file's own, or those of `like` if it is new."""
    target = path.resolve()  # a link stays a link
    temporary = ""
    try:
        model = (target if target.exists() else like).stat()
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            _take_after(file.fileno(), model)
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        _forget(temporary)
        raise unwritable(path, error) from error
    except BaseException:
        _forget(temporary)
        raise


def _take_after(descriptor: int, model: os.stat_result) -> None:
    try:
        os.fchown(descriptor, model.st_uid, model.st_gid)
    except PermissionError:
        pass  # only root gives files away; whoever runs this owns the new one
    os.fchmod(descriptor, stat.S_IMODE(model.st_mode))


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
