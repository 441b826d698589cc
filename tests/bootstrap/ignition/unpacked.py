"""A log bundle taken apart, to look for what must not be in it."""

from __future__ import annotations

import base64
import tarfile
from pathlib import Path

ROOT = "bootbridge-log-bundle/"


def unpacked(path: Path) -> dict[str, bytes]:
    """Its files by their names below the root directory."""
    with tarfile.open(path) as tar:
        members = [member for member in tar.getmembers() if member.isfile()]
        assert all(member.name.startswith(ROOT) for member in members)
        assert all(member.mode == 0o600 for member in members)
        files = {member.name.removeprefix(ROOT): tar.extractfile(member) for member in members}
        return {name: file.read() if file else b"" for name, file in files.items()}


def holders(files: dict[str, bytes], key_pem: bytes) -> list[str]:
    """Files that hold a piece of the key: a line of it, its bytes, or any of them in base64."""
    lines = [line for line in key_pem.splitlines() if b"-----" not in line and len(line) > 15]
    raw = base64.b64decode(b"".join(lines))
    marks = [*lines, raw[16:48], *_encoded(key_pem), *_encoded(raw)]
    marks += [twice for once in _encoded(key_pem) for twice in _encoded(once)]
    return [name for name, data in files.items() if any(mark in data for mark in marks)]


def _encoded(data: bytes) -> list[bytes]:
    """A piece from the middle as base64 has it, for each of the three ways in which it can fall."""
    middle = len(data) // 2
    return [base64.b64encode(data[start:])[4:60] for start in range(middle, middle + 3)]
