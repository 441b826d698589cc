"""Reads a log bundle and searches it for private keys."""

from __future__ import annotations

import base64
import tarfile
from pathlib import Path

ROOT = "bootbridge-log-bundle/"


def unpacked(path: Path) -> dict[str, bytes]:
    """Returns the files by their names below the root directory."""
    with tarfile.open(path) as tar:
        members = [member for member in tar.getmembers() if member.isfile()]
        assert all(member.name.startswith(ROOT) for member in members)
        assert all(member.mode == 0o600 for member in members)
        files = {member.name.removeprefix(ROOT): tar.extractfile(member) for member in members}
        return {name: file.read() if file else b"" for name, file in files.items()}


def holders(files: dict[str, bytes], key_pem: bytes) -> list[str]:
    """Returns the files that contain a piece of the key: a line, its bytes, or base64 of either."""
    lines = [line for line in key_pem.splitlines() if b"-----" not in line and len(line) > 15]
    raw = base64.b64decode(b"".join(lines))
    marks = [*lines, raw[16:48], *_encoded(key_pem), *_encoded(raw)]
    marks += [twice for once in _encoded(key_pem) for twice in _encoded(once)]
    return [name for name, data in files.items() if any(mark in data for mark in marks)]


def _encoded(data: bytes) -> list[bytes]:
    """Returns base64 of a piece from the middle, for each of the three alignments."""
    middle = len(data) // 2
    return [base64.b64encode(data[start:])[4:60] for start in range(middle, middle + 3)]
