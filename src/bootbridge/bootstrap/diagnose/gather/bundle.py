"""The archive: one function adds files, with limits; sources and their failures are listed."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bootbridge.common.files import write_error
from bootbridge.common.redaction import Redactor, is_secret_file
from bootbridge.errors import OperatorError

ROOT = "bootbridge-log-bundle"
FILE_BYTES_MAX = 8 << 20
BUNDLE_BYTES_MAX = 256 << 20
NAME_CHARS_MAX = 200
CUT = b"[cut: only the end is kept]\n"


@dataclass
class BundleSource:
    """One source of files; `trouble` is the reason if it could not be collected."""

    name: str
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    trouble: str = ""


class LogBundle:
    """Writes to a temporary file; `finish` renames it to `path`."""

    def __init__(self, path: Path, redactor: Redactor, *, mtime: float | None = None) -> None:
        self.path = path
        self.redactor = redactor
        self.sources: list[BundleSource] = []
        self._mtime = int(time.time() if mtime is None else mtime)
        self._bytes = 0
        self._names: set[str] = set()
        try:
            descriptor, self._temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except OSError as error:
            raise write_error(path, error) from error
        self._file = os.fdopen(descriptor, "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def __repr__(self) -> str:
        return f"<LogBundle {self.path} {len(self._names)} files>"

    # --- files

    def add(self, name: str, data: bytes) -> int:
        """Adds a file without its secrets; of a file that is too long, the end. Returns the size added."""
        if is_secret_file(name):
            raise OperatorError("not collected: it contains a key", subject=name)
        cleaned = self.redactor.clean(data)
        if len(cleaned) > FILE_BYTES_MAX:
            cleaned = CUT + cleaned[-FILE_BYTES_MAX:].partition(b"\n")[2]
        if self._bytes + len(cleaned) > BUNDLE_BYTES_MAX:
            raise OperatorError(f"bundle size limit of {BUNDLE_BYTES_MAX >> 20} MiB reached", subject=name)
        self._write(self._free_name(_safe(name)), cleaned)
        self._bytes += len(cleaned)
        return len(cleaned)

    def _write(self, name: str, data: bytes) -> None:
        entry = tarfile.TarInfo(f"{ROOT}/{name}")
        entry.size, entry.mtime, entry.mode = len(data), self._mtime, 0o600
        try:
            self._tar.addfile(entry, io.BytesIO(data))
        except OSError as error:
            raise write_error(self.path, error) from error

    def _free_name(self, name: str) -> str:
        free, number = name, 1
        while free in self._names:
            number += 1
            free = f"{name}.{number}"
        self._names.add(free)
        return free

    # --- sources

    def collect(self, name: str, source: Callable[[LogBundle], None]) -> BundleSource:
        """Lets a source add its files; a failure is recorded in the entry that is returned."""
        entry, files, size, began = BundleSource(name), len(self._names), self._bytes, time.monotonic()
        try:
            source(self)
        except OperatorError as error:
            entry.trouble = str(error)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            entry.trouble = f"{type(error).__name__}: {error}"
        entry.files, entry.bytes = len(self._names) - files, self._bytes - size
        entry.seconds = round(time.monotonic() - began, 1)
        self.sources.append(entry)
        return entry

    # --- the end

    def finish(self) -> Path:
        listing = json.dumps([asdict(each) for each in self.sources], indent=2, ensure_ascii=False)
        self.add("gather.json", f"{listing}\n".encode())
        try:
            self._tar.close()
            self._file.flush()
            os.fchmod(self._file.fileno(), 0o600)
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self.path)
        except OSError as error:
            self.abandon()
            raise write_error(self.path, error) from error
        return self.path

    def abandon(self) -> None:
        """Removes the temporary file; does nothing after `finish`."""
        self._file.close()
        Path(self._temporary).unlink(missing_ok=True)

    def __enter__(self) -> LogBundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


def _safe(name: str) -> str:
    """Returns a safe relative path for any name."""
    words = [word for word in name.replace("\\", "/").split("/") if word not in ("", ".", "..")]
    plain = "/".join("".join(c if c.isprintable() else "_" for c in word) for word in words)
    return plain[-NAME_CHARS_MAX:].lstrip("/") or "unnamed"
