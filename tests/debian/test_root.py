"""Commands in a Debian root end with the one who started them, and leave neither processes nor mounts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.debian import root
from tests.support.not_run import not_run
from tests.support.process_program import ROOT, until

# A mount, a process in the background, and one that does not end.
COMMAND = """
mount --make-rprivate / && mount -t tmpfs tmpfs "$1" || exit
sleep 1000 &
echo >"$1.started"
exec sleep 1000
"""
SCRIPT = """
import signal, sys
from tests.debian import root
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
root.run(["sh", "-c", *sys.argv[1:]])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    if os.geteuid() != 0:
        not_run("mounts need root")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    argv = [sys.executable, "-c", SCRIPT, COMMAND, "sh", str(mounted)]
    process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until(Path(f"{mounted}.started").exists, "the command runs")
        process.send_signal(number)
        assert process.wait(20) != 0
    finally:
        process.kill()
        process.wait()
    assert str(mounted) not in Path("/proc/mounts").read_text()
    until(lambda: not processes_with(str(mounted)), "all processes have ended")


def processes_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if word in text:
            found.append(text)
    return found


def test_a_failed_command_is_an_error() -> None:
    if os.geteuid() != 0:
        not_run("namespaces need root")
    with pytest.raises(subprocess.CalledProcessError):
        root.run(["sh", "-c", "exit 3"])


@pytest.mark.parametrize(
    ("name", "passed"),
    [
        ("PIP_INDEX_URL", True),
        ("https_proxy", True),
        ("SSL_CERT_FILE", True),
        ("PIP_FIND_LINKS", False),
        ("HOME", False),
        ("CI", False),
    ],
)
def test_only_the_settings_of_the_network_are_passed_on(name: str, passed: bool) -> None:
    assert bool(root.VARIABLES.fullmatch(name)) is passed
