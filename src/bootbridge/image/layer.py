"""Builds a layer of a container image: the same entries always give the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One absolute path in an image; owned by root, without a modification time."""

    path: str
    mode: int
    data: bytes | None = field(default=None, repr=False)  # content of a regular file
    source: Path | None = None  # or the file on this machine to read it from
    target: str = ""  # target of a symbolic link


def directory(path: str, mode: int = 0o755) -> Entry:
    return Entry(path, mode | 0o40000)


def file(path: str, data: bytes, mode: int = 0o644) -> Entry:
    return Entry(path, mode, data=data)


def copied(path: str, source: Path, mode: int = 0o644) -> Entry:
    return Entry(path, mode, source=source)


def link(path: str, target: str) -> Entry:
    return Entry(path, 0o777, target=target)


@dataclass(frozen=True)
class Blob:
    """Bytes with a media type, addressed by digest."""

    data: bytes = field(repr=False)
    media_type: str

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.data).hexdigest()

    @property
    def descriptor(self) -> dict[str, object]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.data)}


@dataclass(frozen=True)
class ImageLayer:
    """The compressed blob, the digest of its uncompressed content, and where copied files came from."""

    blob: Blob
    diff_id: str
    sources: Mapping[str, Path] = field(default_factory=dict, repr=False)


LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"


def layer(entries: Iterable[Entry]) -> ImageLayer:
    """Packs entries in sorted order, with their parent directories; a later entry replaces an earlier one."""
    archive = io.BytesIO()
    packed = _with_parents(entries)
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in packed:
            _add(tar, entry)
    plain = archive.getvalue()
    return ImageLayer(
        Blob(gzip.compress(plain, compresslevel=6, mtime=0), LAYER_TYPE),
        "sha256:" + hashlib.sha256(plain).hexdigest(),
        {entry.path: entry.source for entry in packed if entry.source is not None},
    )


def _with_parents(entries: Iterable[Entry]) -> list[Entry]:
    by_path: dict[str, Entry] = {}
    for entry in entries:
        by_path[entry.path] = entry
    for path in list(by_path):
        parent = path.rpartition("/")[0]
        while parent and parent not in by_path:
            by_path[parent] = directory(parent)
            parent = parent.rpartition("/")[0]
    return [by_path[path] for path in sorted(by_path)]


def _add(tar: tarfile.TarFile, entry: Entry) -> None:
    info = tarfile.TarInfo(entry.path.lstrip("/"))
    info.mode = entry.mode & 0o7777
    if entry.target:
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
        tar.addfile(info)
    elif entry.mode & 0o40000:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        data = entry.source.read_bytes() if entry.source is not None else entry.data or b""
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
