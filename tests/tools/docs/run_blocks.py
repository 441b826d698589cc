"""Runs the blocks of a session in one shell, as a reader pastes them, and compares what they print."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.tools.docs.blocks import Block, Place, Session
from tests.tools.docs.markdown import ROOT

PROGRAMS = Path(sys.executable).parent
# Bounds a block that hangs; decides nothing else.
PATIENCE_SECONDS = {Place.ALONE: 120, Place.LAB: 1200}
_ANY = "…"
# Default ports must be free, and every process must end with the session.
_ISOLATED = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
# Blocks are sourced one after the other. Job control, so that `kill %1` works as in a terminal.
_PREPARE = "ip link set lo up\n"
# Counts the commands that failed. `source` fails with the last command of its file, already counted.
_SHELL = """
set -m
note() { case $1 in "source ${2%.failed}.sh") ;; *) failed=$((failed + 1)); echo "$1" >>"$2" ;; esac; }
"""
_BLOCK = """
exec >{outputs}/{number}.stdout 2>{outputs}/{number}.stderr
failed=0
trap 'note "$BASH_COMMAND" {outputs}/{number}.failed' ERR
source {outputs}/{number}.sh
code=$?
trap - ERR
echo "$code $failed" >{outputs}/{number}.code
[ "$code $failed" = "{expected}" ] || exit 0
"""
_END = "\nfor each in $(jobs -p); do kill $each; done 2>/dev/null\nwait\n"


class BlockFailed(Exception):
    """A block ended with another code, or printed something else, than the document says."""


def missing(place: Place) -> str:
    """Returns why blocks cannot run here; empty if they can."""
    if place is Place.LAB:
        return ""
    for program in ("bash", "curl", "ip", "openssl", "unshare"):
        if not shutil.which(program):
            return f"{program}: not installed"
    probe = subprocess.run([*_ISOLATED, "true"], capture_output=True, check=False)
    return "unshare --net: not permitted on this machine" if probe.returncode else ""


def run(
    session: Session,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    given: Mapping[str, bytes] | None = None,
) -> None:
    """Runs a session in an empty directory, with files `given` to it; raises BlockFailed."""
    outputs = directory / "outputs"
    outputs.mkdir()
    (directory / "work").mkdir()
    for name, content in (given or {}).items():
        file = directory / "work" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    script = outputs / "session.sh"
    script.write_text(_script(session, outputs))
    shell = ["bash", str(script)]
    command = [*_ISOLATED, *shell] if session.place is Place.ALONE else shell
    _end_in_time(command, session.place, directory, environment or {})
    for number, block in enumerate(session.blocks):
        _compare(session, block, outputs, number)


def _script(session: Session, outputs: Path) -> str:
    parts = [_PREPARE if session.place is Place.ALONE else "", _SHELL]
    for number, block in enumerate(session.blocks):
        (outputs / f"{number}.sh").write_text(block.script)
        expected = f"{block.exit_code} {1 if block.exit_code else 0}"
        parts.append(_BLOCK.format(outputs=outputs, number=number, expected=expected))
    return "".join([*parts, _END])


def _end_in_time(command: list[str], place: Place, directory: Path, environment: Mapping[str, str]) -> None:
    home = {"HOME": str(directory), "LC_ALL": "C.UTF-8", "COLUMNS": "100"}
    path = {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
    with (directory / "outputs" / "session.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            # The lab's blocks are pasted in a checkout, which has the programs that `make kubernetes` built.
            cwd=ROOT if place is Place.LAB else directory / "work",
            env={**os.environ, **home, **path, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(PATIENCE_SECONDS[place])
        except subprocess.TimeoutExpired as error:
            raise BlockFailed(f"not finished after {PATIENCE_SECONDS[place]} s") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _compare(session: Session, block: Block, outputs: Path, number: int) -> None:
    where = f"{session.document.name}:{block.line}"
    stdout, stderr = (_read(outputs / f"{number}.{name}") for name in ("stdout", "stderr"))
    code, _, failures = _read(outputs / f"{number}.code").strip().partition(" ")
    if code != str(block.exit_code) or failures != ("1" if block.exit_code else "0"):
        failed = _read(outputs / f"{number}.failed").strip()
        raise BlockFailed(
            f"{where}: exit code {code or 'unknown'}, expected {block.exit_code}"
            f"{f'; failed: {failed}' if failed else ''}\n{stdout}{stderr}{_read(outputs / 'session.log')}"
        )
    for name, expected, actual in (("stdout", block.stdout, stdout), ("stderr", block.stderr, stderr)):
        if expected is not None and not matches(expected, actual):
            raise BlockFailed(f"{where}: {name} differs\n{difference(expected, actual)}")


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def matches(expected: str, actual: str) -> bool:
    """Returns whether an output is the documented one; blanks at the ends of lines do not count."""
    pattern = ""
    for line in _lines(expected):
        parts = (re.escape(part) for part in line.split(_ANY))
        pattern += r"(?:.*\n)*?" if line == _ANY else r".*?".join(parts) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(actual))) is not None


def difference(expected: str, actual: str) -> str:
    """Returns both outputs as a diff."""
    return "\n".join(
        difflib.unified_diff(_lines(expected), _lines(actual), "documented", "printed", lineterm="")
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]
