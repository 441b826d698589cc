"""`lab down` removes everything, also after an interrupted or killed `lab up`."""

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
# One cluster node is enough here. The switch is a machine, too.
UP = ("up", "--nodes=1")
MACHINES = 3
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
# The switch, its ends of links, and what the CNI plugin `bridge` creates.
LINKS = re.compile(rf"{BRIDGE}|p-.*|cni[0-9]+|veth[0-9a-f]{{8}}")
# Control groups of pods and of other containers.
GROUPS = ("kubepods", "k8s.io")
COVERED = {*OVERLAID, *BOUND, RUN, "/proc", *map(str, hierarchies())}
# The kubelet's default plugin directory, which nodes do not mount over.
STRAYS = ("/usr/libexec/kubernetes",)
HOMES = ("/var/lib/containerd/", "/var/lib/kubelet/", "/run/containerd/", "/run/netns/cni-")
# Ends a test that hangs; docs/lab.md has the usual time of `lab down`.
DOWN_SECONDS = 180.0


@dataclass
class Watched:
    """A lab, and the state of this machine before it."""

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
        """Returns the processes with its directory or control group: process id → command line."""
        found = {}
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            texts = [read(f"/proc/{pid}/{name}") for name in ("cmdline", "mountinfo", "cgroup")]
            # Zombies do not count.
            if start_time(pid) and any(str(self.directory) in text or self.group in text for text in texts):
                found[pid] = texts[0].replace("\0", " ")
        return found

    def note_namespaces(self) -> None:
        """Records the processes in the lab's namespaces, which live as long as a process or a mount.

        Not the namespaces' numbers, which the kernel reuses for other labs.
        """
        ours = {each for pid in self.processes() for each in namespaces(pid)} - namespaces(os.getpid())
        pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
        self.inside |= {pid: start_time(pid) for pid in pids if ours & namespaces(pid)}

    def left(self) -> list[str]:
        """Returns what is new on this machine, or belongs to the lab."""
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
    """Returns links, mounts, control groups and files with names that a lab or its programs use.

    Everything else on this machine may change independently of the lab.
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


def is_covered(path: str) -> bool:
    """Returns whether a node, its containerd or its kubelet mounts something there."""
    return path in COVERED or path.startswith(HOMES)


def namespaces(pid: int) -> set[str]:
    """Returns the kernel's names of a process's namespaces."""
    try:
        return {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in NAMESPACES}
    except OSError:
        return set()


def read(path: str) -> str:
    """Returns the text of a file; empty if it does not exist."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    if problem := missing():
        not_run(problem)
    monkeypatch.setenv("BOOTBRIDGE_LAB_IMAGES", str(IMAGES))
    watched = Watched(tmp_path / "lab")
    yield watched
    # After an interrupted test its `lab up` still runs and holds the lock.
    for process in watched.begun:
        process.kill()
        process.wait()
    watched.run("down")


def a_node_has_begun(lab: Watched) -> bool:
    """The first moment: a process holds namespaces that are not recorded yet."""
    return bool(lab.nodes())


def all_machines_are_there(lab: Watched) -> bool:
    return len(lab.nodes()) == MACHINES


def pods_run(lab: Watched) -> bool:
    return any("kube-apiserver" in words for words in lab.processes().values())


MOMENTS: list[Callable[[Watched], bool]] = [a_node_has_begun, all_machines_are_there, pods_run]


def begin(lab: Watched, moment: Callable[[Watched], bool]) -> subprocess.Popen[bytes]:
    """Runs `lab up` until that moment."""
    process = subprocess.Popen(
        lab.command(*UP), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    lab.begun.append(process)
    deadline = time.monotonic() + UP_SECONDS
    while not moment(lab):
        assert process.poll() is None, "`lab up` ended too early"
        assert time.monotonic() < deadline
        # The first moment is short; polling all processes as often for the later ones would use a core.
        time.sleep(0.002 if moment is a_node_has_begun else 0.1)
    lab.note_namespaces()
    return process


@pytest.mark.parametrize("moment", MOMENTS)
def test_down_removes_everything_after_a_killed_up(lab: Watched, moment: Callable[[Watched], bool]) -> None:
    process = begin(lab, moment)
    process.kill()
    process.wait()
    done = lab.run("down", seconds=DOWN_SECONDS)
    assert done.returncode == 0, done.stderr
    assert lab.left() == []
    assert list(lab.directory.iterdir()) == []


def test_interrupted_up_removes_everything(lab: Watched) -> None:
    process = begin(lab, pods_run)
    process.send_signal(signal.SIGINT)
    assert process.wait(DOWN_SECONDS) == 130
    assert lab.left() == []
    assert list(lab.directory.iterdir()) == []


def test_up_works_after_a_killed_up_and_down_removes_everything(lab: Watched) -> None:
    """First with all commands, then with a node that dies."""
    killed = begin(lab, all_machines_are_there)
    killed.kill()
    killed.wait()
    for meanwhile in (check_commands, check_dead_node):
        done = lab.run(*UP)
        assert done.returncode == 0, done.stderr
        assert len(lab.nodes()) == MACHINES
        lab.note_namespaces()
        twice = lab.run(*UP)
        assert twice.returncode == 1
        assert "lab already running" in twice.stderr
        meanwhile(lab)
        done = lab.run("down", seconds=DOWN_SECONDS)
        assert done.returncode == 0, done.stderr
        assert lab.left() == []


def check_commands(lab: Watched) -> None:
    """Checks the commands that other tests do not run through the command line."""
    status = lab.run("status", "--json")
    assert (status.returncode, json.loads(status.stdout)["apiServerReady"]) == (0, True)
    assert lab.run("shell", "node1", "hostname").stdout == "node1\n"
    assert lab.run("kubectl", "get", "nodes", "-o", "name").stdout == "node/node1\n"
    assert "kubelet" in lab.run("logs", "node1", "kubelet").stdout
    dry_run = lab.run("tunnel", "--dry-run", "--protocol=HTTPConnect")
    assert (dry_run.returncode, "server static pod" in dry_run.stdout) == (0, True), dry_run.stderr
    assert lab.run("remove-tunnel").returncode == 0
    done = lab.run("permanent-apiserver", "node1")
    assert done.returncode == 0, done.stderr
    assert lab.run("kubectl", "--on", "node1", "get", "--raw", "/readyz").stdout == "ok"


def check_dead_node(lab: Watched) -> None:
    nodes = json.loads(lab.run("status", "--json").stdout)["nodes"]
    (pid,) = [node["pid"] for node in nodes if node["name"] == "node1"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not start_time(pid), "the node has ended", DOWN_SECONDS)
    found = lab.run("status")
    assert (found.returncode, "not running" in found.stdout) == (2, True)
    refused = lab.run("shell", "node1", "hostname")
    assert (refused.returncode, "node1: node has died" in refused.stderr) == (1, True)


def test_lab_demo_succeeds_and_leaves_nothing(lab: Watched) -> None:
    done = lab.run("demo", "--nodes=1")
    assert done.returncode == 0, done.stderr
    assert "denied by the webhook" in done.stderr
    assert lab.left() == []
    assert list(lab.directory.iterdir()) == []
