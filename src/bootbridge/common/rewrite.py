"""Gives a file another content, whole or not at all, and leaves whose it is and who may read it as it was."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

from bootbridge.common.files import unwritable, write_whole


def rewrite(path: Path, data: bytes, like: Path) -> None:
    """Put `data` there; mode and owner are the file's own, or those of `like` if it is new."""
    target = path.resolve()  # a link stays a link
    try:
        model = (target if target.exists() else like).stat()
    except OSError as error:
        raise unwritable(path, error) from error
    write_whole(target, data, partial(_take_after, model))


def _take_after(model: os.stat_result, descriptor: int) -> None:
    try:
        os.fchown(descriptor, model.st_uid, model.st_gid)
    except PermissionError:
        pass  # only root gives files away; whoever runs this owns the new one
    os.fchmod(descriptor, stat.S_IMODE(model.st_mode))
