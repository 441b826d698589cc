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
from bootbridge.lab.space import Space, start_time
from tests.support.lab import IMAGES, missing

pytestmark = pytest.mark.e2e

UP_SECONDS = 600.0
# What a lab must not take longer than, with room for a machine that does other things beside.
DOWN_SECONDS = 30.0


@dataclass
class Watched:
    """A lab, and the machine as it was before."""

    directory: Path

    def __post_init__(self) -> None:
        self.before = machine()
        self.group = Cgroups(self.directory).name

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "bootbridge.cli.main", "lab", *words, "--dir", str(self.directory)]

    def run(self, *words: str, seconds: float = UP_SECONDS) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=seconds)

    def nodes(self) -> set[str]:
        return {space.name for space in Space.found_below(self.directory / "nodes")}

    def processes(self) -> dict[int, str]:
        """Those that are called after it, live in its files or in its control groups: number → words."""
        found = {}
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            told = [read(f"/proc/{pid}/{name}") for name in ("cmdline", "mountinfo", "cgroup")]
            # One that has ended and is only waited for is as good as gone.
            if start_time(pid) and any(str(self.directory) in text or self.group in text for text in told):
                found[pid] = told[0].replace("\0", " ")
        return found

    def left(self) -> list[str]:
        """What is on the machine that was not there before, or belongs to the lab."""
        groups = Path("/sys/fs/cgroup").glob(f"**/{self.group}")
        mounts = [line for line in read("/proc/mounts").splitlines() if str(self.directory) in line]
        new = sorted(machine() - self.before)
        return [f"process {pid}: {words}" for pid, words in self.processes().items()] + [
            *mounts,
            *map(str, groups),
            *new,
        ]


def machine() -> set[str]:
    """Links and mounts of this machine, and control groups that hold no process; other labs' left out."""
    links = {f"link {path.name}" for path in Path("/sys/class/net").iterdir()}
    mounts = {f"mount {line}" for line in read("/proc/mounts").splitlines()}
    groups = {
        f"control group {path}"
        for pattern in ("*/*", "*/*/*")
        for path in Path("/sys/fs/cgroup").glob(pattern)
        if path.is_dir() and "/bootbridge-lab-" not in str(path) and not read(f"{path}/cgroup.procs")
    }
    return links | mounts | groups


def read(path: str) -> str:
    """Empty when there is no such process any more."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
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
    return bool(lab.nodes())


def all_machines_are_there(lab: Watched) -> bool:
    return len(lab.nodes()) == 4


def pods_run(lab: Watched) -> bool:
    return any("kube-apiserver" in words for words in lab.processes().values())


MOMENTS: list[Callable[[Watched], bool]] = [a_node_has_begun, all_machines_are_there, pods_run]


def begin(lab: Watched, moment: Callable[[Watched], bool]) -> subprocess.Popen[bytes]:
    """`lab up`, until that moment."""
    process = subprocess.Popen(
        lab.command("up"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + UP_SECONDS
    while not moment(lab):
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
        assert len(lab.nodes()) == 4
        assert lab.run("status").returncode == 0
        twice = lab.run("up")
        assert twice.returncode == 1
        assert "a lab runs in" in twice.stderr
        done = lab.run("down", seconds=DOWN_SECONDS)
        assert done.returncode == 0, done.stderr
        assert lab.left() == []
