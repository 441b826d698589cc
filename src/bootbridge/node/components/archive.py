"""Unpacks a component's tar.gz into a directory and never outside it.

Only directories, files and symbolic links are accepted; names and link targets are checked. The archive is
unpacked into a staging directory first, so that an invalid one changes nothing; then each file is renamed to
its path.

No link leads out of the archive, also not through other links: a target is relative, has `..` only at its
start, and at most as many as the link is deep. The link's own directories are not links, so those `..` end
at a directory of the archive; what follows only goes down, or into another link with the same property.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from bootbridge.errors import BootbridgeError

# Bounds for a compression bomb.
UNPACKED_BYTES_MAX: Final = 8 << 30
MEMBERS_MAX: Final = 100_000
COPY_BYTES: Final = 1 << 20


class BadArchive(BootbridgeError):
    """The archive is invalid or unsafe."""


def unpack(archive: Path, directory: Path) -> None:
    """Adds the contents to `directory`; replaces files of the same name."""
    directory.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member, name in _checked(members):
                _extract(members, member, staging / name)
        _move_into(staging, directory)
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise BadArchive(f"invalid tar.gz: {error}") from error
    except OSError as error:
        # Errors of the gzip module have no strerror.
        raise BadArchive(f"unpacking to {directory} failed: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _checked(members: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str]]:
    size = count = 0
    links: set[str] = set()
    for member in members:
        count, size = count + 1, size + member.size
        if count > MEMBERS_MAX or size > UNPACKED_BYTES_MAX:
            raise BadArchive(f"archive exceeds {MEMBERS_MAX} files or {UNPACKED_BYTES_MAX} bytes")
        name = _name(member.name)
        if any(parent in links for parent in _parents(name)):
            raise BadArchive(f"path below a symbolic link: {member.name!r}")
        if not (member.isdir() or member.isreg() or member.issym()):
            raise BadArchive(f"unsupported file type: {member.name!r}")
        if name == "." and not member.isdir():
            raise BadArchive("file without a name")
        if member.issym():
            _check_target(name, member.linkname)
            links.add(name)
        yield member, name


def _name(given: str) -> str:
    """Returns the normalised relative path; raises BadArchive if it leaves the directory."""
    if not given.strip():
        raise BadArchive("member without a name")
    if given.startswith("/") or ".." in given.split("/") or "\0" in given:
        raise BadArchive(f"path outside the archive: {given!r}")
    return posixpath.normpath(given)


def _check_target(name: str, target: str) -> None:
    if not target:
        raise BadArchive(f"symbolic link without a target: {name!r}")
    steps = [step for step in target.split("/") if step not in ("", ".")]
    ups = len(list(takewhile("..".__eq__, steps)))
    if target.startswith("/") or ups > name.count("/") or ".." in steps[ups:]:
        problem = f"symbolic link {name!r} to a target that may be outside the archive: {target!r}"
        raise BadArchive(f'{problem} (use a relative target with ".." only at its start)')


def _parents(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name


def _extract(members: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if member.issym():
        path.symlink_to(member.linkname)
        return
    source = members.extractfile(member)
    assert source is not None, "a regular file"
    with source, path.open("xb") as file:
        shutil.copyfileobj(source, file, COPY_BYTES)
        # Of the archive's modes only the execute bit is kept: no setuid bits from a download.
        os.fchmod(file.fileno(), 0o755 if member.mode & 0o111 else 0o644)


def _move_into(source: Path, directory: Path) -> None:
    for entry in sorted(source.iterdir()):
        target = directory / entry.name
        if entry.is_dir() and not entry.is_symlink():
            if target.is_symlink():
                raise BadArchive(f"{target} is a symbolic link, but a directory in the archive")
            target.mkdir(exist_ok=True)
            _move_into(entry, target)
        else:
            os.replace(entry, target)
