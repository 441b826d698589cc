"""Virtual environments with exactly the packages of a lock file, kept for the next run."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from release.commands import run
from release.interpreters import Interpreter

# Nothing is built from source, so that no unlocked build requirement is fetched.
_LOCKED = ("install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:")


def create(folder: Path, name: str, interpreter: Interpreter, locks: Sequence[Path]) -> Path:
    """Returns the directory of programs of an environment; creates it if these locks have none yet."""
    digest = hashlib.sha256(f"{interpreter.path} {interpreter.release}".encode())
    for lock in locks:
        digest.update(lock.read_bytes())
    target = folder / f"{name}-{interpreter.version}-{digest.hexdigest()[:12]}"
    ready = target / ".ready"
    if not ready.exists():
        shutil.rmtree(target, ignore_errors=True)
        run([interpreter.path, "-m", "venv", target])
        for lock in locks:
            run([target / "bin" / "pip", *_LOCKED, "-r", lock])
        ready.touch()
    return target / "bin"
