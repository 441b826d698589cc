"""Paths below another root: a link on the way there leads to a place there, as for whoever lives in it.

The kernel follows an absolute link of a node's from this machine's own root, and what is meant for the node
would be written to this machine.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath

# As many as the kernel itself follows.
LINKS_MAX = 40


def rooted(root: Path, path: str) -> Path:
    """Where `path` lies below `root`; links on the way are followed, but not one that it names itself."""
    *waiting, name = PurePosixPath(path).parts[1:] or ("",)
    place, links = PurePosixPath("/"), 0
    while waiting:
        step = waiting.pop(0)
        if step == "..":
            place = place.parent
            continue
        try:
            target = PurePosixPath(os.readlink(_joined(root, place / step)))
        except OSError:  # no link, or nothing there yet
            place /= step
            continue
        if (links := links + 1) > LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        place = PurePosixPath("/") if target.is_absolute() else place
        waiting[:0] = target.relative_to("/").parts if target.is_absolute() else target.parts
    return _joined(root, place / name)


def _joined(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")
