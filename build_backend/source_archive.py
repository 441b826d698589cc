"""Makes a source archive reproducible: setuptools stores owner, mode and time of this machine's files."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path


def make_reproducible(path: str) -> None:
    """Rewrites a .tar.gz: sorted, owned by root, modes without the umask, SOURCE_DATE_EPOCH as time."""
    # 1980: the first year that a zip archive, and so a wheel built from this archive, can store.
    time = int(os.environ.get("SOURCE_DATE_EPOCH") or 315532800)
    packed = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            executable = member.isdir() or member.mode & 0o100
            member.mode, member.mtime = (0o755 if executable else 0o644), time
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    temporary = Path(f"{path}.new")
    temporary.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    temporary.replace(path)
