"""Runs the commands of a build, in an environment that does not depend on the user."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

# Everything else could change what is built: compiler flags, languages, Python options.
_KEPT = ("PATH", "HOME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH")
_KEPT_PREFIXES = ("PIP_", "http_", "https_", "no_proxy", "HTTP_", "HTTPS_", "NO_PROXY")
_LINES_SHOWN = 30


class ReleaseError(Exception):
    """A reason to stop that the person who makes the release can fix."""


def environment(source_date_epoch: int, **more: str) -> dict[str, str]:
    """Returns the variables for a build; `source_date_epoch` is the only time in its files."""
    kept = {
        name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    fixed = {
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": f"{source_date_epoch}",
    }
    return kept | fixed | more


def run(
    command: Sequence[str | Path],
    *,
    variables: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> str:
    """Returns what a command wrote to stdout; raises with the end of its output if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=directory, env=variables, umask=0o022, capture_output=True, text=True, check=False
    )
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_LINES_SHOWN:])
        raise ReleaseError(f"{' '.join(words)}: exit code {done.returncode}\n{output}")
    return done.stdout


@contextmanager
def step(title: str) -> Iterator[None]:
    """Prints what was done and how long it took."""
    started = time.monotonic()
    print(f"release: {title} …", flush=True)
    yield
    print(f"release: {title}: done in {time.monotonic() - started:.0f} s", flush=True)
