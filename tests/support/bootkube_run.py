"""Runs a bootkube.sh below a directory, with fakes of podman and oc that only record their calls."""

from __future__ import annotations

import subprocess
from pathlib import Path

# Directories of the script, redirected to the test's directory.
_DIRECTORIES = ("/opt/openshift", "/etc/kubernetes", "/usr/local/bin/")
_PODMAN = """\
#!/usr/bin/env bash
printf '%s\\n' "podman $*" >> "$CALLS"
case " $* " in
*" render "*apiserver*)
    mkdir -p kube-apiserver-bootstrap
    echo rendered > kube-apiserver-bootstrap/config ;;
*" cluster-bootstrap "*) [ ! -f "$FAIL" ] ;;
esac
"""
_OC = """\
#!/usr/bin/env bash
printf '%s\\n' "oc $*" >> "$CALLS"
"""


class Node:
    """Simulates a bootstrap node in a directory."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "node"
        self._bin = directory / "bin"
        self._calls = directory / "calls"
        self.fail = directory / "fail"  # cluster-bootstrap fails while this file exists
        for path in (
            self.root / "opt/openshift",
            self.root / "etc/kubernetes",
            self.root / "usr/local/bin",
            self._bin,
        ):
            path.mkdir(parents=True)
        for name, text in (("podman", _PODMAN), ("oc", _OC)):
            (self._bin / name).write_text(text)
            (self._bin / name).chmod(0o755)

    def put(self, path: str, content: bytes) -> Path:
        """Writes a file, with paths in its content redirected to the node's directory."""
        for directory in _DIRECTORIES:
            content = content.replace(directory.encode(), f"{self.root}{directory}".encode())
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return target

    def run(self, script: Path) -> int:
        environment = {
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "CALLS": str(self._calls),
            "FAIL": str(self.fail),
        }
        result = subprocess.run(
            ["bash", str(script)], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        self.output = result.stdout + result.stderr
        return result.returncode

    def calls(self) -> list[str]:
        """Returns the calls of podman, oc and the hooks so far, oldest first."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []
