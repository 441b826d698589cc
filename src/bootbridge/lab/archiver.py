"""`tar`, as far as `kubectl cp` needs it in a pod: pack one path to stdout, unpack stdin into a directory."""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """`cf - PATH` or `xmf - [-C DIRECTORY]`, which is all that kubectl asks for."""
    words = [word for word in (sys.argv[1:] if argv is None else argv) if not word.startswith("--")]
    verb = words[0].lstrip("-") if words else ""
    if verb not in ("cf", "xf", "xmf") or words[1:2] != ["-"]:
        sys.stderr.write("tar: only `cf - PATH` and `xmf - -C DIRECTORY` are known here\n")
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
        # Python 3.11.2, which Debian 12 has, knows no filters yet.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory)


if __name__ == "__main__":
    sys.exit(main())
