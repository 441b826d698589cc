"""The part of `tar` that `kubectl cp` needs in a pod: packs a path to stdout, unpacks stdin."""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `cf - PATH` or `xmf - [-C DIRECTORY]`, the two forms that kubectl uses."""
    words = [word for word in (sys.argv[1:] if argv is None else argv) if not word.startswith("--")]
    verb = words[0].lstrip("-") if words else ""
    if verb not in ("cf", "xf", "xmf") or words[1:2] != ["-"]:
        sys.stderr.write("tar: unsupported arguments (supported: `cf - PATH`, `xmf - -C DIRECTORY`)\n")
        return 2
    if verb == "cf":
        _pack(words[2])
    else:
        _unpack(words[words.index("-C") + 1] if "-C" in words else ".")
    return 0


def _pack(path: str) -> None:
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.add(path, arcname=path.lstrip("/"))


def _unpack(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        # Python 3.11.2 of Debian 12 has no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory)


if __name__ == "__main__":
    sys.exit(main())
