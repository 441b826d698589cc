"""`lab up`: concurrent jobs, preconditions, and the cache of images."""

from __future__ import annotations

import ctypes
import io
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.image import recipes
from bootbridge.image.oci import OciImage
from bootbridge.lab import inotify
from bootbridge.lab.bring_up import LabBuilder
from bootbridge.lab.components import PAUSE, Components
from bootbridge.lab.images import Images
from bootbridge.lab.lab import TIMED_OUT, Lab
from bootbridge.lab.layout import Layout
from bootbridge.lab.node_runtime import PAUSE_IMAGE
from tests.support.lab import SHORT_PAUSES, until
from tests.support.locks import waits_for_a_lock
from tests.support.not_run import not_run

NOBODY = 65534


@pytest.fixture
def builder(tmp_path: Path) -> LabBuilder:
    components = Components({}, tmp_path)
    images = Images(tmp_path / "images", components, None)
    return LabBuilder(Lab(tmp_path, Layout()), components, images, Progress(io.StringIO()))


def test_jobs_run_concurrently(builder: LabBuilder) -> None:
    """Two jobs that wait for each other both end."""
    meeting = threading.Barrier(2, timeout=10)
    builder._together(
        "both", {"one": lambda: meeting.wait() and None, "two": lambda: meeting.wait() and None}
    )


def test_first_failure_ends_the_step_without_waiting_for_other_jobs(builder: LabBuilder) -> None:
    never = threading.Event()

    def fail() -> None:
        raise OperatorError("no disk")

    with pytest.raises(OperatorError, match="no disk"):
        builder._together("both", {"slow": lambda: never.wait(60) and None, "broken": fail})
    never.set()


def test_slow_api_server_is_not_ready_but_no_failure(
    builder: LabBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lab, "kubectl", lambda *_, **__: ["sleep", "600"])
    slow = builder.lab.ask(builder.components, "get", "nodes", seconds=0.1)
    assert (slow.returncode, slow.stderr) == (TIMED_OUT, b"timed out after 0.1s")
    monkeypatch.setattr(Lab, "ask", lambda *_, **__: slow)
    assert builder._nodes_problem() == "bootstrap kube-apiserver does not answer"
    assert not builder.lab.apiserver_is_ready(builder.components)


def test_missing_inotify_instances_are_reported_before_anything_is_created(
    builder: LabBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inotify, "available", lambda: 29)
    with pytest.raises(OperatorError, match="not enough inotify instances: 30 needed, 29 available"):
        builder.bring_up()
    assert list(builder.lab.directory.iterdir()) == []


def test_inotify_instances_of_a_process_are_counted() -> None:
    before = inotify.held_by(os.getpid())
    held = ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC)
    try:
        assert inotify.held_by(os.getpid()) == before + 1
    finally:
        os.close(held)
    assert inotify.held_by(os.getpid()) == before


def test_inotify_instances_of_other_users_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        not_run("only root can start a process of another user")
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    with subprocess.Popen(["sleep", "1000"], user=NOBODY) as other:
        try:
            for holder, available in {other.pid: limit, os.getpid(): limit - 5}.items():
                monkeypatch.setattr(inotify, "held_by", lambda pid, holder=holder: 5 * (pid == holder))
                assert inotify.available() == available
        finally:
            other.kill()


@pytest.fixture
def pause(tmp_path: Path) -> Path:
    """The only program of the image."""
    program = tmp_path / "pause"
    program.write_bytes(b"one")
    return program


def pause_image(pause: Path) -> Path:
    """Returns the image's archive, as a new lab gets it."""
    directory = pause.parent
    return Images(directory / "images", Components({PAUSE: pause}, directory), None).archive(PAUSE_IMAGE)


def test_image_is_built_again_only_if_its_contents_change(pause: Path) -> None:
    first = pause_image(pause)
    built = first.stat().st_mtime_ns
    assert pause_image(pause).stat().st_mtime_ns == built
    pause.write_bytes(b"another")
    assert pause_image(pause) != first


def test_image_is_built_again_for_another_python_release(
    pause: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pause_image(pause)
    monkeypatch.setattr(sys, "version", "4.0")
    assert pause_image(pause) != before


def test_concurrent_labs_build_an_image_once(pause: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, packed = recipes.static, list[str]()

    def pack(programs: Mapping[str, Path]) -> OciImage:
        packed.append("once")
        # Until the other lab builds too, or waits for the lock.
        until(
            lambda: len(packed) == 2 or waits_for_a_lock(os.getpid()),
            "both labs build the image or wait",
            60,
            SHORT_PAUSES,
        )
        return original(programs)

    monkeypatch.setattr(recipes, "static", pack)
    with ThreadPoolExecutor(2) as labs:
        one, other = labs.map(pause_image, [pause, pause])
    assert one == other
    assert packed == ["once"]
    assert list((pause.parent / "images").iterdir()) == [one]
