"""Unpacks a component's tar.gz below a directory, and not one byte beside it.

Names and the targets of links are checked; only directories, files and symbolic links are known. All of it
is unpacked into a directory of its own first, so that an archive that turns out bad half-way leaves what was
there before; then each file takes its place at once.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bootbridge.errors import BootbridgeError

# A small archive can hold a very large file.
UNPACKED_BYTES_MAX: Final = 8 << 30
MEMBERS_MAX: Final = 100_000
COPY_BYTES: Final = 1 << 20


class BadArchive(BootbridgeError):
    """It cannot be unpacked, or must not be."""


def unpack(archive: Path, directory: Path) -> None:
    """Into `directory`, beside what is there already; files of the same name are replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member, name in _checked(members):
                _put(members, member, workshop / name)
        _move(workshop, directory)
    except (tarfile.TarError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadArchive(f"it is no whole tar.gz: {error}") from error
    except OSError as error:
        # gzip's own complaints have no errno.
        what = error.strerror or str(error)
        raise BadArchive(f"it cannot be unpacked to {directory}: {what}") from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _checked(members: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str]]:
    size = count = 0
    links: set[str] = set()
    for member in members:
        count, size = count + 1, size + member.size
        if count > MEMBERS_MAX or size > UNPACKED_BYTES_MAX:
            raise BadArchive(f"it holds more than {MEMBERS_MAX} files or {UNPACKED_BYTES_MAX} bytes")
        name = _name(member.name)
        if any(parent in links for parent in _parents(name)):
            raise BadArchive(f"{member.name!r} lies behind a link")
        if member.issym():
            _check_target(name, member.linkname)
            links.add(name)
        elif not (member.isdir() or member.isreg()):
            raise BadArchive(f"{member.name!r} is neither a directory nor a file nor a symbolic link")
        elif name == "." and not member.isdir():
            raise BadArchive("a file has no name")
        yield member, name


def _name(given: str) -> str:
    """Relative, inside, and spelled in one way."""
    if not given.strip():
        raise BadArchive("a member has no name")
    if given.startswith("/") or ".." in given.split("/") or "\0" in given:
        raise BadArchive(f"{given!r} leads out of the archive")
    return posixpath.normpath(given)


def _check_target(name: str, target: str) -> None:
    if not target:
        raise BadArchive(f"the link {name!r} leads nowhere")
    led = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    if target.startswith("/") or led == ".." or led.startswith("../"):
        raise BadArchive(f"the link {name!r} leads out of the archive, to {target!r}")


def _parents(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name


def _put(members: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
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
        # Of the archive's modes only "may be run" counts: nothing gets a set-user-id bit from a download.
        os.fchmod(file.fileno(), 0o755 if member.mode & 0o111 else 0o644)


def _move(source: Path, directory: Path) -> None:
    for entry in sorted(source.iterdir()):
        place = directory / entry.name
        if entry.is_dir() and not entry.is_symlink():
            if place.is_symlink():
                raise BadArchive(f"{place} is a link, and the archive has a directory there")
            place.mkdir(exist_ok=True)
            _move(entry, place)
        else:
            os.replace(entry, place)
