"""A fake kubeadm: a shell script that records its arguments."""

from __future__ import annotations

import shlex
from pathlib import Path

VERSION_ANSWER = 'case "$1" in version) echo v1.36.3; exit;; esac'


class FakeKubeadm:
    """`kubeadm` in a folder; `calls` are the arguments of each run but for `version`."""

    def __init__(self, folder: Path, body: str = "") -> None:
        self.path = folder / "kubeadm"
        self._calls = folder / "calls"
        self.does(body)

    def does(self, body: str) -> None:
        log = f'echo "$@" >> {shlex.quote(str(self._calls))}'
        self.path.write_text(f"#!/bin/sh\n{VERSION_ANSWER}\n{log}\n{body}\n")
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []
