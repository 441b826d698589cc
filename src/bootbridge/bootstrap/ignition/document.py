"""An ignition document (spec 3.x) as text that can be edited without disturbing the rest of it.

Reading gives the files and units by name. Editing gives splices on the text: nothing is
parsed and written anew, so what an edit does not touch stays as it was, byte for byte.
"""

from __future__ import annotations

import gzip
import io
import json
import posixpath
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bootbridge.bootstrap.ignition import json_spans
from bootbridge.bootstrap.ignition.json_spans import JsonSpan
from bootbridge.common import data_url
from bootbridge.common.files import Asset, Tree
from bootbridge.errors import OperatorError

# A bootstrap.ign holds a few megabytes; what unpacks to more than this is no configuration.
UNPACKED_BYTES_MAX = 64 << 20
# Ignition's own default.
MODE_DEFAULT = 0o644
_VERSION = re.compile(r"3\.\d+\.\d+(-experimental)?")


@dataclass(frozen=True)
class Splice:
    """Put `text` in place of the `length` characters at `start`."""

    start: int
    length: int
    text: str = field(repr=False)


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """All splices at once; their places are those in `text`, in any order, without overlap."""
    pieces, at = [], 0
    for splice in sorted(splices, key=lambda splice: splice.start):
        pieces += [text[at : splice.start], splice.text]
        at = splice.start + splice.length
    return "".join([*pieces, text[at:]])


@dataclass(frozen=True)
class FileEntry:
    """One of `storage.files`. Its content stays out of `repr`: it may be a key."""

    path: str
    mode: int
    source: str | None = field(repr=False)  # None: nothing, or only pieces to append
    compression: str = ""
    pinned: bool = False  # a hash of the content is given, so it cannot change
    source_at: JsonSpan | None = field(repr=False, default=None)

    def content(self) -> bytes:
        """What the node will find in the file; refused if only the node can fetch it."""
        if not self.source:
            return b""
        try:
            data = data_url.decode(self.source)
            return _unpacked(data) if self.compression == "gzip" else data
        except ValueError as error:
            raise OperatorError(f"its contents cannot be read: {error}", subject=self.path) from error

    @property
    def is_inline(self) -> bool:
        return not self.source or self.source[:5].lower() == "data:"


@dataclass(frozen=True)
class Ignition:
    """A parsed document. `text` is the whole of it."""

    text: str = field(repr=False)
    version: str
    files: Mapping[str, FileEntry] = field(repr=False)
    units: Mapping[str, Mapping[str, Any]] = field(repr=False)
    other_paths: frozenset[str]  # directories and links
    replaced_from_elsewhere: bool  # a shim: the real document lies behind a URL
    last_file: JsonSpan | None = field(repr=False)

    @classmethod
    def parse(cls, data: bytes, name: str) -> Ignition:
        """Read a document; `name` is what errors call the file."""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise OperatorError(f"is no JSON: byte {error.start} is no UTF-8", subject=name) from error
        try:
            return _Reader(text, name).document()
        except OperatorError as error:
            subject = name if error.subject in ("", name) else f"{name}: {error.subject}"
            raise OperatorError(error.args[0], subject=subject, hint=error.hint) from error
        except RecursionError as error:
            raise OperatorError("is nested too deeply", subject=name) from error

    @property
    def data(self) -> bytes:
        return self.text.encode()

    def content(self, path: str) -> bytes | None:
        """The content of a file, or None if there is no such file."""
        entry = self.files.get(path)
        return None if entry is None else entry.content()

    def replacement(self, path: str, data: bytes) -> Splice:
        """Give an existing file another content; its mode, owner and compression stay."""
        entry = self.files[path]
        if entry.source_at is None:
            raise OperatorError("has no contents.source to change", subject=path)
        if entry.pinned:
            hint = "take contents.verification out"
            raise OperatorError("is pinned by a hash, so it cannot be changed", subject=path, hint=hint)
        packed = gzip.compress(data, mtime=0) if entry.compression == "gzip" else data
        at = entry.source_at
        return Splice(at.start, at.end - at.start, json.dumps(data_url.encode(packed)))

    def addition(self, tree: Tree) -> Splice:
        """Append files, one line each where the document puts its files on lines of their own."""
        taken = sorted(set(tree) & (set(self.files) | self.other_paths))
        if taken:
            text = "is there already, and Ignition refuses a second entry"
            raise OperatorError(text, subject=taken[0])
        if self.last_file is None:
            raise OperatorError("there is no file to append to", subject="storage.files")
        start, end = self.last_file.start, self.last_file.end
        before = self.text[:start]
        lead = before[len(before.rstrip(" \t\r\n")) :]
        entries = [f",{lead}{_entry(path, asset)}" for path, asset in tree.items()]
        return Splice(end, 0, "".join(entries))


def _entry(path: str, asset: Asset) -> str:
    """A file as the installer spells it; modes are decimal in JSON."""
    entry = {
        "overwrite": True,
        "path": path,
        "user": {"name": "root"},
        "contents": {"source": data_url.encode(asset.data)},
        "mode": asset.mode,
    }
    return json.dumps(entry, separators=(",", ":"))


def _unpacked(data: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            unpacked = packed.read(UNPACKED_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"it is no gzip: {error}") from error
    if len(unpacked) > UNPACKED_BYTES_MAX:
        raise ValueError(f"it unpacks to more than {UNPACKED_BYTES_MAX} bytes")
    return unpacked


class _Reader:
    """Walks down to the entries that matter, and refuses what Ignition itself would refuse there."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name

    def document(self) -> Ignition:
        top = json_spans.root(self._text, self._name)
        if not isinstance(top.content, dict):
            raise OperatorError("holds no object", hint="give the bootstrap.ign that the installer wrote")
        ignition = self._object(top, "ignition")
        version = self._version(ignition)
        config = self._object(ignition, "config") if ignition else None
        storage = self._object(top, "storage")
        entries = list(self._entries(storage, "files"))
        return Ignition(
            text=self._text,
            version=version,
            files=self._files(entries),
            units=self._units(top),
            other_paths=frozenset(self._other_paths(storage)),
            replaced_from_elsewhere=bool(config and self._source(config)),
            last_file=entries[-1] if entries else None,
        )

    def _version(self, ignition: JsonSpan | None) -> str:
        version = self._given(ignition, "version", str, "ignition.version") if ignition else None
        if version is None:
            hint = "give the bootstrap.ign that the installer wrote"
            raise OperatorError("is missing: this is no ignition file", subject="ignition.version", hint=hint)
        if not _VERSION.fullmatch(version):
            text = f"{version[:20]!r} is not supported, 3.x is"
            raise OperatorError(text, subject="ignition.version")
        return version

    def _source(self, config: JsonSpan) -> str:
        replace = self._object(config, "replace")
        return (self._given(replace, "source", str, "ignition.config.replace") or "") if replace else ""

    def _files(self, entries: list[JsonSpan]) -> dict[str, FileEntry]:
        found: dict[str, FileEntry] = {}
        for index, value in enumerate(entries):
            entry = self._file(value, f"storage.files[{index}]")
            if entry.path in found:
                hint = "Ignition refuses a second entry; merge the two"
                raise OperatorError("is there twice", subject=f"storage.files {entry.path}", hint=hint)
            found[entry.path] = entry
        return found

    def _file(self, value: JsonSpan, where: str) -> FileEntry:
        contents = self._object(value, "contents")
        source = self._value(contents, "source", str, where) if contents else None
        return FileEntry(
            path=self._path(value, where),
            mode=self._mode(value, where),
            source=source.content if source else None,
            compression=(self._given(contents, "compression", str, where) or "") if contents else "",
            pinned=self._pinned(contents) if contents else False,
            source_at=source,
        )

    def _pinned(self, contents: JsonSpan) -> bool:
        verification = self._object(contents, "verification")
        return bool(verification and verification.content.get("hash"))

    def _path(self, value: JsonSpan, where: str) -> str:
        path = self._given(value, "path", str, where)
        if not path or not path.startswith("/"):
            raise OperatorError("has no absolute path", subject=where)
        return posixpath.normpath("/" + path.lstrip("/"))

    def _mode(self, value: JsonSpan, where: str) -> int:
        mode = self._given(value, "mode", int, where)
        if mode is None:
            return MODE_DEFAULT
        if isinstance(mode, bool) or not 0 <= mode <= 0o7777:
            raise OperatorError(f"{mode} is no mode (a decimal number)", subject=f"{where}.mode")
        return mode

    def _units(self, top: JsonSpan) -> dict[str, Mapping[str, Any]]:
        systemd = self._object(top, "systemd")
        found = {}
        for index, value in enumerate(self._entries(systemd, "units")):
            name = self._given(value, "name", str, f"systemd.units[{index}]")
            if not name or name in found:
                text = "is there twice, and Ignition refuses that" if name else "has no name"
                raise OperatorError(text, subject=f"systemd.units[{index}] {name or ''}".rstrip())
            found[name] = value.content
        return found

    def _other_paths(self, storage: JsonSpan | None) -> Iterator[str]:
        for kind in ("directories", "links"):
            for index, value in enumerate(self._entries(storage, kind)):
                yield self._path(value, f"storage.{kind}[{index}]")

    def _entries(self, parent: JsonSpan | None, key: str) -> Iterator[JsonSpan]:
        """The objects in a list; nothing if there is no list, or null in its stead."""
        listed = self._value(parent, key, list, key) if parent else None
        for index, value in enumerate(json_spans.elements(self._text, listed) if listed else ()):
            if not isinstance(value.content, dict):
                raise OperatorError("is no object", subject=f"{key}[{index}]")
            yield value

    def _object(self, parent: JsonSpan, key: str) -> JsonSpan | None:
        return self._value(parent, key, dict, key)

    def _given(self, parent: JsonSpan, key: str, kind: type, where: str) -> Any:
        value = self._value(parent, key, kind, where)
        return None if value is None else value.content

    def _value(self, parent: JsonSpan, key: str, kind: type, where: str) -> JsonSpan | None:
        """A member of the kind it should have; null is as good as absent."""
        value = json_spans.member(self._text, parent, key)
        if value is None or value.content is None:
            return None
        if not isinstance(value.content, kind):
            raise OperatorError(
                f"is no {_KINDS[kind]}", subject=where if where.endswith(key) else f"{where}.{key}"
            )
        return value


_KINDS = {dict: "object", list: "list", str: "text", int: "number"}
