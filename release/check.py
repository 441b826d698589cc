"""Builds a release twice, in two clones and two environments, and compares the files."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from release.commands import ReleaseError, run

# What must not change a byte: directory, umask, time zone, language, hash seed, and the time of the build.
CONDITIONS = (
    ("first", 0o022, {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}),
    ("a directory/second", 0o077, {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "2"}),
)


def check(root: Path, arguments: Sequence[str]) -> None:
    """Raises if the two builds differ; the message names the files, and what differs inside archives."""
    with tempfile.TemporaryDirectory(prefix="bootbridge-release-check-") as scratch:
        outputs = []
        # Both before the first build: a commit made meanwhile would be in the second clone only.
        for name, _, _ in CONDITIONS:
            run(["git", "clone", "--quiet", "--no-hardlinks", root, Path(scratch, name)])
        for name, umask, variables in CONDITIONS:
            clone = Path(scratch, name)
            print(f"release: building in {clone}", flush=True)
            output = clone / "build" / "release"
            done = subprocess.run(
                [sys.executable, "-m", "release", "build", *arguments, "--output", output],
                cwd=clone,
                env=os.environ | variables | {"PYTHONPATH": f"{clone}:{clone}/src"},
                umask=umask,
                check=False,
            )
            if done.returncode:
                raise ReleaseError(f"the build in {clone} failed (see above)")
            outputs.append(output)
        found = differences(*outputs)
        if found:
            raise ReleaseError("two builds differ:\n" + "\n".join(found))
        print(f"release: two builds, {len(list(outputs[0].iterdir()))} files, all equal")


def differences(first: Path, second: Path) -> list[str]:
    """Returns what differs between two directories of files, with the members of archives."""
    names = {path.name for path in (*first.iterdir(), *second.iterdir())}
    found = []
    for name in sorted(names):
        one, other = first / name, second / name
        if not (one.exists() and other.exists()):
            found.append(f"{name}: exists only once")
        elif one.read_bytes() != other.read_bytes():
            found += _inside(name, one.read_bytes(), other.read_bytes())
    return found


def _inside(name: str, one: bytes, other: bytes) -> list[str]:
    left, right = _members(one), _members(other)
    changed = sorted(member for member in left.keys() | right.keys() if left.get(member) != right.get(member))
    return [f"{name}: {member}" for member in changed] or [f"{name}: the bytes differ"]


def _members(data: bytes) -> dict[str, object]:
    """Returns each member of an archive with its metadata and hash; nothing for other files."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {
                info.filename: (info.date_time, info.external_attr, _digest(archive.read(info)))
                for info in archive.infolist()
            }
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            return {
                info.name: (
                    info.get_info(),
                    _digest(content.read()) if (content := tar.extractfile(info)) else "",
                )
                for info in tar
            }
    except tarfile.TarError:
        return {}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
