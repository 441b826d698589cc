"""A lab that is taken down, interrupted or killed leaves nothing behind, and is in nobody's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bootbridge.lab.cgroups import Cgroups
from bootbridge.lab.space import Space
from tests.support.lab import IMAGES, missing

pytestmark = pytest.mark.e2e

UP_SECONDS = 600.0
# What a lab must not take longer than, with room for a machine that does other things beside.
DOWN_SECONDS = 30.0
KINDS = ("mnt", "net", "pid", "uts", "ipc")


@dataclass
class Watched:
    """A lab, and every namespace that it was ever seen with."""

    directory: Path

    def __post_init__(self) -> None:
        self.namespaces: set[str] = set()
        self.before = machine()

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "bootbridge.cli.main", "lab", *words, "--dir", str(self.directory)]

    def run(self, *words: str, seconds: float = UP_SECONDS) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=seconds)

    def look(self) -> list[Space]:
        """Its nodes; their namespaces are remembered."""
        found = Space.found_below(self.directory / "nodes")
        for space in found:
            self.namespaces |= namespaces(space.pid) - namespaces(os.getpid())
        return found

    def left(self) -> list[str]:
        """What is on the machine that was not there before, or belongs to the lab."""
        inside = [pid for pid in processes() if namespaces(pid) & self.namespaces]
        named = [pid for pid in processes() if str(self.directory) in words_of(pid) and pid != os.getpid()]
        mounts = [
            line for line in Path("/proc/mounts").read_text().splitlines() if str(self.directory) in line
        ]
        group = Cgroups(self.directory).name
        groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{group}")]
        return [
            *(f"process {pid}: {words_of(pid)}" for pid in {*inside, *named}),
            *mounts,
            *groups,
            *sorted(machine() - self.before),
        ]


def machine() -> set[str]:
    """Links, mounts and control groups of this machine, other labs' left out."""
    links = {f"link {path.name}" for path in Path("/sys/class/net").iterdir()}
    mounts = {f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines()}
    groups = {
        f"control group {path}"
        for path in Path("/sys/fs/cgroup").glob("*/*")
        if path.is_dir() and not path.name.startswith("bootbridge-lab-")
    }
    return links | mounts | groups


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def namespaces(pid: int) -> set[str]:
    try:
        return {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS}
    except OSError:
        return set()


def words_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    if lack := missing():
        pytest.fail(lack) if os.environ.get("CI") == "true" else pytest.skip(lack)
    monkeypatch.setenv("BOOTBRIDGE_LAB_IMAGES", str(IMAGES))
    watched = Watched(tmp_path / "lab")
    yield watched
    watched.run("down")


def a_node_has_begun(lab: Watched) -> bool:
    """The very first moment: processes hold namespaces that no record tells of yet."""
    return bool(lab.look())


def all_machines_are_there(lab: Watched) -> bool:
    return len({space.name for space in lab.look()}) == 4


def pods_run(lab: Watched) -> bool:
    return any("kube-apiserver" in words_of(pid) for pid in processes() if namespaces(pid) & lab.namespaces)


MOMENTS: list[Callable[[Watched], bool]] = [a_node_has_begun, all_machines_are_there, pods_run]


def begin(lab: Watched, moment: Callable[[Watched], bool]) -> subprocess.Popen[bytes]:
    """`lab up`, until that moment."""
    process = subprocess.Popen(
        lab.command("up"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + UP_SECONDS
    while not (lab.look() and moment(lab)):
        assert process.poll() is None, "`lab up` ended before its time"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return process


@pytest.mark.parametrize("moment", MOMENTS)
def test_down_leaves_nothing_of_a_lab_whose_up_was_killed(
    lab: Watched, moment: Callable[[Watched], bool]
) -> None:
    process = begin(lab, moment)
    process.kill()
    process.wait()
    lab.look()
    done = lab.run("down", seconds=DOWN_SECONDS)
    assert done.returncode == 0, done.stderr
    assert lab.left() == []
    assert not [path for path in lab.directory.iterdir() if path.name != "images"]


def test_an_interrupted_up_takes_down_what_it_began(lab: Watched) -> None:
    process = begin(lab, pods_run)
    process.send_signal(signal.SIGINT)
    assert process.wait(DOWN_SECONDS) == 130
    assert lab.left() == []


def test_up_works_after_a_killed_up_and_a_second_time_and_down_leaves_nothing(lab: Watched) -> None:
    killed = begin(lab, all_machines_are_there)
    killed.kill()
    killed.wait()
    for _ in range(2):
        done = lab.run("up")
        assert done.returncode == 0, done.stderr
        assert len(lab.look()) >= 4
        assert lab.run("status").returncode == 0
        twice = lab.run("up")
        assert twice.returncode == 1
        assert "a lab runs in" in twice.stderr
        done = lab.run("down", seconds=DOWN_SECONDS)
        assert done.returncode == 0, done.stderr
        assert lab.left() == []
