"""Reads an ignition file (spec 3.x) and edits its text.

Reading returns files and units by name. Editing returns splices of the text. Nothing is serialised again, so
every byte outside a splice stays unchanged.
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

# A bootstrap.ign has a few megabytes. The limit protects against decompression bombs.
UNPACKED_BYTES_MAX = 64 << 20
# Ignition's default.
MODE_DEFAULT = 0o644
_VERSION = re.compile(r"3\.\d+\.\d+(-experimental)?")


@dataclass(frozen=True)
class Splice:
    """Replaces the `length` characters at `start` with `text`."""

    start: int
    length: int
    text: str = field(repr=False)


def apply_splices(text: str, splices: Iterable[Splice]) -> str:
    """Applies all splices. Their positions refer to `text`; they may be unordered, but must not overlap."""
    pieces, at = [], 0
    for splice in sorted(splices, key=lambda splice: splice.start):
        pieces += [text[at : splice.start], splice.text]
        at = splice.start + splice.length
    return "".join([*pieces, text[at:]])


@dataclass(frozen=True)
class FileEntry:
    """Holds one entry of `storage.files`. `repr` omits the content, which may be a key."""

    path: str
    mode: int
    source: str | None = field(repr=False)  # None: no content, or only `append`
    compression: str = ""
    pinned: bool = False  # `verification` has a hash of the content
    source_at: JsonSpan | None = field(repr=False, default=None)

    def content(self) -> bytes:
        """Returns the file's content. Raises OperatorError if it is invalid or must be fetched."""
        if not self.source:
            return b""
        try:
            data = data_url.decode(self.source)
            return _unpacked(data) if self.compression == "gzip" else data
        except ValueError as error:
            raise OperatorError(f"invalid contents: {error}", subject=self.path) from error

    @property
    def is_inline(self) -> bool:
        return not self.source or self.source[:5].lower() == "data:"


@dataclass(frozen=True)
class Ignition:
    """Holds a parsed document and its text."""

    text: str = field(repr=False)
    version: str
    files: Mapping[str, FileEntry] = field(repr=False)
    units: Mapping[str, Mapping[str, Any]] = field(repr=False)
    other_paths: frozenset[str]  # directories and links
    is_pointer: bool  # a pointer: the real document is fetched from a URL
    last_file: JsonSpan | None = field(repr=False)

    @classmethod
    def parse(cls, data: bytes, name: str) -> Ignition:
        """Parses a document. `name` is the file in errors."""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise OperatorError(f"invalid UTF-8 at byte {error.start}", subject=name) from error
        try:
            return _Reader(text, name).document()
        except OperatorError as error:
            subject = name if error.subject in ("", name) else f"{name}: {error.subject}"
            raise OperatorError(error.args[0], subject=subject, hint=error.hint) from error
        except RecursionError as error:
            raise OperatorError("nested too deeply", subject=name) from error

    @property
    def data(self) -> bytes:
        return self.text.encode()

    def content(self, path: str) -> bytes | None:
        """Returns the content of a file, or None if it does not exist."""
        entry = self.files.get(path)
        return None if entry is None else entry.content()

    def replacement(self, path: str, data: bytes) -> Splice:
        """Replaces the content of an existing file. Mode, owner and compression stay unchanged."""
        entry = self.files[path]
        if entry.source_at is None:
            raise OperatorError("required field missing: contents.source", subject=path)
        if entry.pinned:
            hint = "remove contents.verification"
            raise OperatorError("protected by contents.verification", subject=path, hint=hint)
        packed = gzip.compress(data, mtime=0) if entry.compression == "gzip" else data
        at = entry.source_at
        return Splice(at.start, at.end - at.start, json.dumps(data_url.encode(packed)))

    def addition(self, tree: Tree) -> Splice:
        """Appends files, each on its own line if the document is formatted so."""
        taken = sorted(set(tree) & (set(self.files) | self.other_paths))
        if taken:
            raise OperatorError("duplicate path", subject=taken[0], hint="Ignition rejects a second entry")
        if self.last_file is None:
            raise OperatorError("at least one file is required", subject="storage.files")
        start, end = self.last_file.start, self.last_file.end
        before = self.text[:start]
        lead = before[len(before.rstrip(" \t\r\n")) :]
        entries = [f",{lead}{_entry(path, asset)}" for path, asset in tree.items()]
        return Splice(end, 0, "".join(entries))


def _entry(path: str, asset: Asset) -> str:
    """Returns a file entry in the installer's format. Modes are decimal in JSON."""
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
        raise ValueError(f"invalid gzip: {error}") from error
    if len(unpacked) > UNPACKED_BYTES_MAX:
        raise ValueError(f"more than {UNPACKED_BYTES_MAX} bytes unpacked")
    return unpacked


class _Reader:
    """Parses the entries that we use, and rejects what Ignition would reject there."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name

    def document(self) -> Ignition:
        top = json_spans.root(self._text, self._name)
        if not isinstance(top.content, dict):
            raise OperatorError("not an ignition file", hint="give the installer's bootstrap.ign")
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
            is_pointer=bool(config and self._source(config)),
            last_file=entries[-1] if entries else None,
        )

    def _version(self, ignition: JsonSpan | None) -> str:
        version = self._given(ignition, "version", str, "ignition.version") if ignition else None
        if version is None:
            hint = "give the installer's bootstrap.ign"
            raise OperatorError("required field missing", subject="ignition.version", hint=hint)
        if not _VERSION.fullmatch(version):
            hint = "supported: 3.x"
            raise OperatorError(
                f"unsupported version {version[:20]!r}", subject="ignition.version", hint=hint
            )
        return version

    def _source(self, config: JsonSpan) -> str:
        replace = self._object(config, "replace")
        return (self._given(replace, "source", str, "ignition.config.replace") or "") if replace else ""

    def _files(self, entries: list[JsonSpan]) -> dict[str, FileEntry]:
        found: dict[str, FileEntry] = {}
        for index, value in enumerate(entries):
            entry = self._file(value, f"storage.files[{index}]")
            if entry.path in found:
                hint = "Ignition rejects a second entry; merge the two"
                raise OperatorError("duplicate path", subject=f"storage.files {entry.path}", hint=hint)
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
            raise OperatorError("absolute path required", subject=f"{where}.path")
        return posixpath.normpath("/" + path.lstrip("/"))

    def _mode(self, value: JsonSpan, where: str) -> int:
        mode = self._given(value, "mode", int, where)
        if mode is None:
            return MODE_DEFAULT
        if isinstance(mode, bool) or not 0 <= mode <= 0o7777:
            raise OperatorError(f"invalid file mode {mode}", subject=f"{where}.mode")
        return mode

    def _units(self, top: JsonSpan) -> dict[str, Mapping[str, Any]]:
        systemd = self._object(top, "systemd")
        found = {}
        for index, value in enumerate(self._entries(systemd, "units")):
            name = self._given(value, "name", str, f"systemd.units[{index}]")
            if not name or name in found:
                text = "duplicate name" if name else "required field missing: name"
                raise OperatorError(text, subject=f"systemd.units[{index}] {name or ''}".rstrip())
            found[name] = value.content
        return found

    def _other_paths(self, storage: JsonSpan | None) -> Iterator[str]:
        for kind in ("directories", "links"):
            for index, value in enumerate(self._entries(storage, kind)):
                yield self._path(value, f"storage.{kind}[{index}]")

    def _entries(self, parent: JsonSpan | None, key: str) -> Iterator[JsonSpan]:
        """Yields the objects of a list. A missing list and null are empty."""
        listed = self._value(parent, key, list, key) if parent else None
        for index, value in enumerate(json_spans.elements(self._text, listed) if listed else ()):
            if not isinstance(value.content, dict):
                raise OperatorError("invalid type: object required", subject=f"{key}[{index}]")
            yield value

    def _object(self, parent: JsonSpan, key: str) -> JsonSpan | None:
        return self._value(parent, key, dict, key)

    def _given(self, parent: JsonSpan, key: str, kind: type, where: str) -> Any:
        value = self._value(parent, key, kind, where)
        return None if value is None else value.content

    def _value(self, parent: JsonSpan, key: str, kind: type, where: str) -> JsonSpan | None:
        """Returns a member of the required type, or None if it is missing or null."""
        value = json_spans.member(self._text, parent, key)
        if value is None or value.content is None:
            return None
        if not isinstance(value.content, kind):
            raise OperatorError(
                f"invalid type: {_KINDS[kind]} required",
                subject=where if where.endswith(key) else f"{where}.{key}",
            )
        return value


_KINDS = {dict: "object", list: "list", str: "string", int: "number"}
