"""Bringing a lab up does things at the same time, and stops at the first that fails."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from bootbridge.bootstrap.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.lab.bring_up import Builder
from bootbridge.lab.components import PAUSE, Components
from bootbridge.lab.images import Images
from bootbridge.lab.lab import UP, Lab
from bootbridge.lab.layout import Layout
from bootbridge.lab.node_runtime import PAUSE_IMAGE


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    components = Components({}, tmp_path)
    images = Images(tmp_path / "images", components, None)
    return Builder(Lab(tmp_path, Layout()), components, images, Progress(io.StringIO()))


def test_jobs_run_at_the_same_time(builder: Builder) -> None:
    """Two that wait for each other would never end one by one."""
    meeting = threading.Barrier(2, timeout=10)
    builder._together(
        "both", {"one": lambda: meeting.wait() and None, "two": lambda: meeting.wait() and None}
    )


def test_the_first_failure_ends_the_step_without_waiting_for_the_others(builder: Builder) -> None:
    never = threading.Event()

    def fail() -> None:
        raise OperatorError("no disk")

    with pytest.raises(OperatorError, match="no disk"):
        builder._together("both", {"slow": lambda: never.wait(60) and None, "broken": fail})
    never.set()


def test_an_image_is_made_once_and_again_only_when_its_contents_changed(tmp_path: Path) -> None:
    pause = tmp_path / "pause"
    pause.write_bytes(b"one")
    images = Images(tmp_path / "images", Components({PAUSE: pause}, tmp_path), None)
    first = images.archive(PAUSE_IMAGE)
    made = first.stat().st_mtime_ns
    assert images.archive(PAUSE_IMAGE).stat().st_mtime_ns == made
    pause.write_bytes(b"another")
    assert images.archive(PAUSE_IMAGE) != first


def test_what_is_left_of_a_lab_that_never_was_up_goes_when_the_next_begins(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab", Layout())
    (lab.directory / "nodes" / "node1").mkdir(parents=True)
    (lab.directory / "images").mkdir()
    lab.begin()
    assert not (lab.directory / "nodes").exists()
    assert (lab.directory / "images").exists()
    assert not (lab.directory / UP).exists()
