"""Runs a bootkube.sh under a directory of its own, with podman and oc that only write down their calls."""

from __future__ import annotations

import subprocess
from pathlib import Path

# Where the script works on a node; here each lies below the node's directory instead.
_PLACES = ("/opt/openshift", "/etc/kubernetes", "/usr/local/bin/")
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
    """A directory that stands for a bootstrap node."""

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
        """Put a file on the node; paths inside it lead to the node's directory."""
        for place in _PLACES:
            content = content.replace(place.encode(), f"{self.root}{place}".encode())
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
        """What podman, oc and the hooks were called with so far, oldest first."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []
