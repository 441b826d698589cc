"""The README's "Use the tunnel alone": its blocks, pasted into a shell, do what the text says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.support.not_run import not_run
from tests.support.process_program import OURS, ROOT

README = ROOT / "README.md"
# The blocks use the programs' default ports, so they run in a network namespace of their own.
ISOLATED = ["unshare", "--map-root-user", "--net", "bash", "-c"]
PASTED = "set -m; ip link set lo up && source ./blocks.sh && wait"
PATIENCE_SECONDS = 60


def tunnel_alone() -> str:
    text = README.read_text()
    section = text[text.index("## Use the tunnel alone") :]
    return section[section.index("Certificates, a server") : section.index("On two machines")]


def test_the_tunnel_alone_works_as_it_is_written(tmp_path: Path) -> None:
    """Certificates, server, agent, forward and curl, one after the other, with the output printed there."""
    blocks = re.findall(r"^    (.*)$|^$", tunnel_alone(), re.MULTILINE)
    lines = [line for line in blocks if line]
    assert [line for line in lines if line == "ok"] == ["ok"]
    (tmp_path / "blocks.sh").write_text("\n".join(line for line in lines if line != "ok"))
    if not shutil.which("curl"):
        not_run("curl: not installed")
    probe = subprocess.run([*ISOLATED, "ip link set lo up"], capture_output=True, check=False)
    if probe.returncode:
        not_run("unshare --net: not permitted on this machine")
    done = subprocess.run(
        [*ISOLATED, PASTED],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{OURS}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert "\nok" in f"\n{done.stdout}", done.stderr
    assert "certs: 3 certificates issued" in done.stdout
    assert "bootbridge forward: stopped, " in done.stderr
