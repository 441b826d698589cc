"""A lab that is taken down, interrupted or killed leaves nothing behind, and is in nobody's way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bootbridge.lab.cgroups import Cgroups
from bootbridge.lab.init import BOUND, OVERLAID, RUN, hierarchies
from bootbridge.lab.namespaces import NodeNamespaces
from bootbridge.lab.network import BRIDGE
from bootbridge.lab.processes import start_time
from tests.support.lab import IMAGES, missing, until
from tests.support.not_run import not_run

pytestmark = pytest.mark.e2e

UP_SECONDS = 600.0
# One cluster node is as good as two to leave something behind. The switch is a machine, too.
UP = ("up", "--nodes=1")
MACHINES = 3
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
# The switch, its ends of cables, and what the bridge plugin makes.
LINKS = re.compile(rf"{BRIDGE}|p-.*|cni[0-9]+|veth[0-9a-f]{{8}}")
# Control groups of pods and of containers that belong to none.
GROUPS = ("kubepods", "k8s.io")
COVERED = {*OVERLAID, *BOUND, RUN, "/proc", *map(str, hierarchies())}
# Where a kubelet keeps plugins unless it is told otherwise: no node covers that.
STRAYS = ("/usr/libexec/kubernetes",)
HOMES = ("/var/lib/containerd/", "/var/lib/kubelet/", "/run/containerd/", "/run/netns/cni-")
# Ends a test that hangs, and judges nobody: how long `lab down` takes is measured elsewhere (docs/lab.md).
DOWN_SECONDS = 180.0


@dataclass
class Watched:
    """A lab, and the machine as it was before."""

    directory: Path

    def __post_init__(self) -> None:
        self.before = machine()
        self.group = Cgroups(self.directory).name
        self.begun: list[subprocess.Popen[bytes]] = []
        self.inside: dict[int, int] = {}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "bootbridge.cli.main", "lab", "--dir", str(self.directory), *words]

    def run(self, *words: str, seconds: float = UP_SECONDS) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=seconds)

    def nodes(self) -> set[str]:
        return {namespaces.name for namespaces in NodeNamespaces.find_below(self.directory / "nodes")}

    def processes(self) -> dict[int, str]:
        """Those that are called after it, live in its files or in its control groups: number → words."""
        found = {}
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            told = [read(f"/proc/{pid}/{name}") for name in ("cmdline", "mountinfo", "cgroup")]
            # One that has ended and is only waited for is as good as gone.
            if start_time(pid) and any(str(self.directory) in text or self.group in text for text in told):
                found[pid] = told[0].replace("\0", " ")
        return found

    def note_namespaces(self) -> None:
        """Who is inside: a namespace lives as long as a process or a mount holds it.

        Not its number, which the kernel gives to another lab's as soon as it is free.
        """
        ours = {each for pid in self.processes() for each in namespaces(pid)} - namespaces(os.getpid())
        pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
        self.inside |= {pid: start_time(pid) for pid in pids if ours & namespaces(pid)}

    def left(self) -> list[str]:
        """What is on the machine that was not there before, or belongs to the lab."""
        groups = [hierarchy / self.group for hierarchy in hierarchies() if (hierarchy / self.group).exists()]
        held = [pid for pid, started in self.inside.items() if started and start_time(pid) == started]
        mounts = [line for line in read("/proc/mounts").splitlines() if str(self.directory) in line]
        new = sorted(machine() - self.before)
        return [f"process {pid}: {words}" for pid, words in self.processes().items()] + [
            *(f"namespaces of process {pid}: {read(f'/proc/{pid}/cmdline')}" for pid in held),
            *mounts,
            *map(str, groups),
            *new,
        ]


def machine() -> set[str]:
    """What of this machine a lab could have made, had it got out of its namespaces.

    By the names that it and its programs give. All else comes and goes here as others please, and labs
    beside this one answer for their own.
    """
    links = {f"link {path.name}" for path in Path("/sys/class/net").iterdir() if LINKS.fullmatch(path.name)}
    mounts = {f"mount {line}" for line in read("/proc/mounts").splitlines() if is_covered(line.split()[1])}
    groups = {
        f"control group {hierarchy / name}"
        for hierarchy in hierarchies()
        for name in GROUPS
        if (hierarchy / name).exists()
    }
    files = {f"file {path}" for path in STRAYS if Path(path).exists()}
    return links | mounts | groups | files


def is_covered(place: str) -> bool:
    """Whether a node mounts something there, itself or by its containerd and kubelet."""
    return place in COVERED or place.startswith(HOMES)


def namespaces(pid: int) -> set[str]:
    """Those that a process is in, by the kernel's names for them."""
    try:
        return {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in NAMESPACES}
    except OSError:
        return set()


def read(path: str) -> str:
    """Empty when there is no such process any more."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    if lack := missing():
        not_run(lack)
    monkeypatch.setenv("BOOTBRIDGE_LAB_IMAGES", str(IMAGES))
    watched = Watched(tmp_path / "lab")
    yield watched
    # An interrupted test leaves its `lab up` at work, and as long as that works there is no `lab down`.
    for process in watched.begun:
        process.kill()
        process.wait()
    watched.run("down")


def a_node_has_begun(lab: Watched) -> bool:
    """The very first moment: processes hold namespaces that no record tells of yet."""
    return bool(lab.nodes())


def all_machines_are_there(lab: Watched) -> bool:
    return len(lab.nodes()) == MACHINES


def pods_run(lab: Watched) -> bool:
    return any("kube-apiserver" in words for words in lab.processes().values())


MOMENTS: list[Callable[[Watched], bool]] = [a_node_has_begun, all_machines_are_there, pods_run]


def begin(lab: Watched, moment: Callable[[Watched], bool]) -> subprocess.Popen[bytes]:
    """`lab up`, until that moment."""
    process = subprocess.Popen(
        lab.command(*UP), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    lab.begun.append(process)
    deadline = time.monotonic() + UP_SECONDS
    while not moment(lab):
        assert process.poll() is None, "`lab up` ended before its time"
        assert time.monotonic() < deadline
        # The first moment is over at once; to look at every process as often for the later ones costs a core.
        time.sleep(0.002 if moment is a_node_has_begun else 0.1)
    lab.note_namespaces()
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
    assert list(lab.directory.iterdir()) == []


def test_an_interrupted_up_takes_down_what_it_began(lab: Watched) -> None:
    process = begin(lab, pods_run)
    process.send_signal(signal.SIGINT)
    assert process.wait(DOWN_SECONDS) == 130
    assert lab.left() == []
    assert list(lab.directory.iterdir()) == []


def test_up_works_after_a_killed_up_and_a_second_time_and_down_leaves_nothing(lab: Watched) -> None:
    """The first time with all that is done with a lab, the second with a node that dies."""
    killed = begin(lab, all_machines_are_there)
    killed.kill()
    killed.wait()
    for meanwhile in (every_command_does_what_it_says, a_dead_node_is_noticed):
        done = lab.run(*UP)
        assert done.returncode == 0, done.stderr
        assert len(lab.nodes()) == MACHINES
        lab.note_namespaces()
        twice = lab.run(*UP)
        assert twice.returncode == 1
        assert "a lab runs in" in twice.stderr
        meanwhile(lab)
        done = lab.run("down", seconds=DOWN_SECONDS)
        assert done.returncode == 0, done.stderr
        assert lab.left() == []


def every_command_does_what_it_says(lab: Watched) -> None:
    """Those that other tests call by another way than the command line."""
    status = lab.run("status", "--json")
    assert (status.returncode, json.loads(status.stdout)["apiServerReady"]) == (0, True)
    assert lab.run("shell", "node1", "hostname").stdout == "node1\n"
    assert lab.run("kubectl", "get", "nodes", "-o", "name").stdout == "node/node1\n"
    assert "kubelet" in lab.run("logs", "node1", "kubelet").stdout
    laid = lab.run("tunnel", "--dry-run", "--protocol=HTTPConnect")
    assert (laid.returncode, "server static pod" in laid.stdout) == (0, True), laid.stderr
    assert lab.run("remove-tunnel").returncode == 0
    done = lab.run("permanent-apiserver", "node1")
    assert done.returncode == 0, done.stderr
    assert lab.run("kubectl", "--on", "node1", "get", "--raw", "/readyz").stdout == "ok"


def a_dead_node_is_noticed(lab: Watched) -> None:
    nodes = json.loads(lab.run("status", "--json").stdout)["nodes"]
    (pid,) = [node["pid"] for node in nodes if node["name"] == "node1"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not start_time(pid), "the node has died", DOWN_SECONDS)
    found = lab.run("status")
    assert (found.returncode, "not up" in found.stdout) == (2, True)
    refused = lab.run("shell", "node1", "hostname")
    assert (refused.returncode, "the node node1 has died" in refused.stderr) == (1, True)


def test_lab_demo_succeeds_and_leaves_nothing(lab: Watched) -> None:
    """`bootbridge lab demo`: from the webhook that blocks to the receipt."""
    done = lab.run("demo", "--nodes=1")
    assert done.returncode == 0, done.stderr
    assert "denied in the webhook's own words" in done.stderr
    assert lab.left() == []
    assert list(lab.directory.iterdir()) == []
