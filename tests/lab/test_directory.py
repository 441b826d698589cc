"""A lab's directory: `down` removes what a lab created there, and nothing else."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from bootbridge.errors import OperatorError
from bootbridge.lab.lab import KEPT, LAYOUT, UP, Lab
from bootbridge.lab.layout import Layout
from bootbridge.lab.namespaces import NodeNamespaces
from bootbridge.lab.processes import start_time
from tests.support.lab import until
from tests.support.lab_mount_holder import looking_in
from tests.support.not_run import needs_program, not_run


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab", Layout())


def names(lab: Lab) -> set[str]:
    return {path.name for path in lab.directory.iterdir()}


def fill(lab: Lab) -> None:
    """Creates the files of a lab that is up."""
    lab.create_directory()
    for name in set(KEPT) - {"namespaces", UP}:
        (lab.directory / name / "node1").mkdir(parents=True)
    lab.mark_as_up()


def test_down_removes_everything_but_images(lab: Lab) -> None:
    fill(lab)
    (lab.directory / "images").mkdir()
    # Left by a writer that was killed.
    (lab.directory / f".{LAYOUT}.abcdefgh").touch()
    assert lab.down() == []
    assert names(lab) == {"images"}


def test_down_leaves_foreign_files(lab: Lab) -> None:
    fill(lab)
    (lab.directory / "notes.txt").write_text("mine")
    (lab.directory / ".git").mkdir()
    assert lab.down() == []
    assert names(lab) == {"notes.txt", ".git"}


def test_directory_without_a_lab_is_left_unchanged(lab: Lab) -> None:
    (lab.directory / "logs" / "of something else").mkdir(parents=True)
    (lab.directory / "nodes").mkdir()
    assert lab.down() == []
    with pytest.raises(OperatorError, match="contains files that are not a lab's: logs, nodes"):
        lab.create_directory()
    assert names(lab) == {"logs", "nodes"}


def test_remains_of_an_interrupted_up_are_removed_by_the_next(lab: Lab) -> None:
    lab.create_directory()
    (lab.directory / "nodes" / "node1").mkdir(parents=True)
    (lab.directory / "images").mkdir()
    lab.create_directory()
    assert names(lab) == {LAYOUT, "namespaces", "images"}


def test_partial_archives_are_removed_from_a_shared_image_directory(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not those that another lab is writing, and no foreign files."""
    shared = tmp_path / "shared"
    monkeypatch.setenv("BOOTBRIDGE_LAB_IMAGES", str(shared))
    shared.mkdir()
    theirs = [".config.lock", ".config.yaml", ".git.lock", ".left.tar.gz.sha256"]
    ours = ["done.tar", ".left.tar.lock", ".left.tar.abcdefgh", ".busy.tar.lock", ".busy.tar.abcdefgh"]
    for name in (*theirs, *ours):
        (shared / name).touch()
    with (shared / ".busy.tar.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        lab.down()
    assert set(os.listdir(shared)) == {".busy.tar.abcdefgh", ".busy.tar.lock", "done.tar", *theirs}


def test_image_directory_is_absolute(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOOTBRIDGE_LAB_IMAGES", "shared")
    assert lab.image_directory == tmp_path / "shared"


@needs_program("ip", "iproute2")
def test_lab_exists_while_its_nodes_run_without_the_directory(lab: Lab) -> None:
    if os.geteuid() != 0:
        not_run("namespaces and mounts need root")
    assert not lab.exists
    lab.create_directory()
    namespaces = NodeNamespaces.create("node1", lab.directory / "nodes" / "node1", lab.cgroups.make("node1"))
    try:
        lab.directory.rename(lab.directory.with_name("moved"))
        assert lab.exists
        assert lab.down() == []
        assert not namespaces.alive
        assert not lab.exists
    finally:
        namespaces.end()


@needs_program("ip", "iproute2")
def test_down_waits_for_outside_processes_that_hold_a_node_s_mounts(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the node's first process has died."""
    if os.geteuid() != 0:
        not_run("namespaces and mounts need root")
    lab.create_directory()
    home = lab.directory / "nodes" / "node1"
    namespaces = NodeNamespaces.create("node1", home)
    with looking_in(namespaces, home) as outside:
        namespaces.kill()
        until(lambda: not NodeNamespaces.find_below(home.parent), "the node has ended", 20)
        monkeypatch.setattr("time.sleep", lambda _: outside.kill())
        assert lab.down() == []
        assert not start_time(outside.pid)
