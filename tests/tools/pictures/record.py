"""docs/pictures/pictures.json: what each picture shows, as a digest of the source files it was made from.

A test compares the digests with the files, so that a picture cannot be older than what it shows. Blank lines
and lines that are only a comment do not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "pictures"
RECORD = FOLDER / "pictures.json"


def sources(patterns: Iterable[str]) -> list[Path]:
    """Returns the files that the patterns match; a pattern that matches none is an error."""
    found: set[Path] = set()
    for pattern in patterns:
        matches = [path for path in ROOT.glob(pattern) if path.is_file() and "__pycache__" not in path.parts]
        if not matches:
            raise FileNotFoundError(f"{pattern}: no such file")
        found.update(matches)
    return sorted(found)


def digest(files: Iterable[Path]) -> str:
    """Returns the SHA-256 of names and contents."""
    total = hashlib.sha256()
    for path in files:
        total.update(str(path.relative_to(ROOT)).encode() + b"\0")
        for line in path.read_bytes().splitlines():
            if line.strip() and not (path.suffix == ".py" and line.lstrip().startswith(b"#")):
                total.update(line + b"\n")
    return total.hexdigest()


def read() -> dict[str, str]:
    found: dict[str, str] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return found


def write(name: str, value: str) -> None:
    """Records the digest of one picture."""
    known = read() | {name: value}
    RECORD.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")
