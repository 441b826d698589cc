"""A lab's directory: what a lab has put there goes with it, what others have put there stays."""

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
from tests.support.not_run import not_run


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab", Layout())


def names(lab: Lab) -> set[str]:
    return {path.name for path in lab.directory.iterdir()}


def fill(lab: Lab) -> None:
    """As a lab does that is up."""
    lab.create_directory()
    for name in set(KEPT) - {"namespaces", UP}:
        (lab.directory / name / "node1").mkdir(parents=True)
    lab.mark_as_up()


def test_down_removes_all_that_a_lab_keeps_but_its_images(lab: Lab) -> None:
    fill(lab)
    (lab.directory / "images").mkdir()
    # Left by one who was killed while writing.
    (lab.directory / f".{LAYOUT}.abcdefgh").touch()
    assert lab.down() == []
    assert names(lab) == {"images"}


def test_down_leaves_what_somebody_else_has_put_beside_a_lab(lab: Lab) -> None:
    fill(lab)
    (lab.directory / "notes.txt").write_text("mine")
    (lab.directory / ".git").mkdir()
    assert lab.down() == []
    assert names(lab) == {"notes.txt", ".git"}


def test_a_directory_that_is_no_lab_s_is_left_as_it_is_whatever_the_names_in_it(lab: Lab) -> None:
    (lab.directory / "logs" / "of something else").mkdir(parents=True)
    (lab.directory / "nodes").mkdir()
    assert lab.down() == []
    with pytest.raises(OperatorError, match="holds what is no lab's: logs, nodes"):
        lab.create_directory()
    assert names(lab) == {"logs", "nodes"}


def test_what_is_left_of_a_lab_that_never_was_up_goes_when_the_next_begins(lab: Lab) -> None:
    lab.create_directory()
    (lab.directory / "nodes" / "node1").mkdir(parents=True)
    (lab.directory / "images").mkdir()
    lab.create_directory()
    assert names(lab) == {LAYOUT, "namespaces", "images"}


def test_what_was_left_of_images_goes_also_where_labs_share_them(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not what another lab is packing at the moment, nor what is no lab's."""
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


def test_images_are_found_on_nodes_too_where_their_place_was_named_from_here(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOOTBRIDGE_LAB_IMAGES", "shared")
    assert lab.image_directory == tmp_path / "shared"


def test_a_lab_whose_directory_was_removed_is_still_there_to_take_down(lab: Lab) -> None:
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


def test_down_waits_for_those_who_hold_a_node_s_mounts_from_outside(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the node itself has died before, and no process has its name any more."""
    if os.geteuid() != 0:
        not_run("namespaces and mounts need root")
    lab.create_directory()
    home = lab.directory / "nodes" / "node1"
    namespaces = NodeNamespaces.create("node1", home)
    with looking_in(namespaces, home) as outside:
        namespaces.kill()
        until(lambda: not NodeNamespaces.find_below(home.parent), "the node has died", 20)
        monkeypatch.setattr("time.sleep", lambda _: outside.kill())
        assert lab.down() == []
        assert not start_time(outside.pid)
