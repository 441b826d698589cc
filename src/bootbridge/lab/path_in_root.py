"""Resolves a node's path from outside the node, with symbolic links resolved inside the node's root.

The kernel would resolve an absolute link against this machine's root, and a file meant for the node would be
written to this machine.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath

# The kernel's own limit.
LINKS_MAX = 40


def resolve_in_root(root: Path, path: str) -> Path:
    """Returns where `path` is below `root`; links in its parents are followed, the last component is not."""
    *waiting, name = PurePosixPath(path).parts[1:] or ("",)
    resolved, links = PurePosixPath("/"), 0
    while waiting:
        step = waiting.pop(0)
        if step == "..":
            resolved = resolved.parent
            continue
        try:
            target = PurePosixPath(os.readlink(_below(root, resolved / step)))
        except OSError:  # not a link, or it does not exist yet
            resolved /= step
            continue
        if (links := links + 1) > LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        resolved = PurePosixPath("/") if target.is_absolute() else resolved
        waiting[:0] = target.relative_to("/").parts if target.is_absolute() else target.parts
    return _below(root, resolved / name)


def _below(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")
