"""`make e2e` leaves no test out, keeps its stories apart, and ends them together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import Layout
from bootbridge.lab.namespaces import Space
from tests.e2e import abandoned, run
from tests.e2e.stories import STORIES, Story
from tests.support.lab import until
from tests.support.not_run import not_run
from tests.support.process_program import ROOT

PATIENCE_SECONDS = 60.0
HEADER = "import pathlib, pytest, time\npytestmark = pytest.mark.e2e\n"


@pytest.fixture(autouse=True)
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ACCOUNTS", tmp_path)


def story(folder: Path, name: str, text: str, watches: int = 1) -> Story:
    path = folder / f"test_{name}.py"
    path.write_text(HEADER + text)
    return Story(name, (str(path),), watches)


def test_every_end_to_end_test_belongs_to_one_story() -> None:
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-m", "e2e", "tests/e2e", "tests/lab"]
    found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    tests = [line for line in found if "::" in line]
    told = {test: [each.name for each in STORIES if each.tells(test)] for test in tests}
    assert {test: names for test, names in told.items() if len(names) != 1} == {}
    assert {name for (name,) in told.values()} == {each.name for each in STORIES}


@pytest.mark.slow
def test_a_story_that_fails_is_shown_whole_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = story(tmp_path, "bad", "def test_it():\n    assert not 'the reason'\n")
    good = story(tmp_path, "good", "def test_it():\n    pass\n")
    done = run.tell([bad, good], at_once=1, watches_given=9)
    assert [(each.story.name, each.process.returncode) for each in done] == [("bad", 1), ("good", 0)]
    assert "the reason" in capsys.readouterr().out


@pytest.mark.slow
def test_a_story_none_of_whose_tests_ran_has_not_passed(tmp_path: Path) -> None:
    skipped = "def test_it():\n    pytest.skip('no etcd')\n"
    none = story(tmp_path, "none", skipped)
    some = story(tmp_path, "some", skipped + "def test_other():\n    pass\n")
    done = run.tell([none, some], at_once=2, watches_given=9)
    verdicts = {each.story.name: each.verdict for each in done}
    assert verdicts["none"] == "NOT RUN"
    assert verdicts["some"].endswith(", but 1 NOT RUN")


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_where_no_lab_can_be_made_one_line_says_so_and_under_ci_it_is_a_failure(
    ci: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(sys, "argv", ["run"])
    monkeypatch.setattr(run, "missing", lambda: "missing: etcd")
    monkeypatch.setattr(run, "tell", lambda *_: pytest.fail("a story was told"))
    assert run.main() == code
    assert capsys.readouterr().out == "NOT RUN: end to end, missing: etcd\n"


@pytest.mark.slow
def test_a_story_that_hangs_is_ended_and_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "STORY_SECONDS", 0.0)
    (done,) = run.tell([story(tmp_path, "endless", "def test_it():\n    time.sleep(3600)\n")], 1, 9)
    assert done.verdict.startswith("FAILED in ")
    assert done.verdict.endswith("did not end by itself")


@pytest.mark.slow
def test_a_killed_runner_leaves_no_story_at_work(tmp_path: Path) -> None:
    text = """
def test_it(request):
    mark = pathlib.Path(__file__).with_suffix(".up")
    request.addfinalizer(lambda: mark.rename(mark.with_suffix(".down")))
    mark.touch()
    time.sleep(600)
"""
    told = story(tmp_path, "one", text)
    script = f"""
import pathlib
from tests.e2e import run
from tests.e2e.stories import Story
run.ACCOUNTS = pathlib.Path({str(tmp_path)!r})
run.tell([Story("one", ({told.paths[0]!r},), watches=1)], 1, 9)
"""
    runner = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL)
    until((tmp_path / "test_one.up").exists, "it has begun", PATIENCE_SECONDS)
    runner.kill()
    runner.wait()
    until((tmp_path / "test_one.down").exists, "it has cleaned up", PATIENCE_SECONDS)


def test_a_lab_is_abandoned_when_the_test_run_that_made_it_is_gone(tmp_path: Path) -> None:
    """And only then: labs of other runs beside this one, and of people, stay."""
    if os.geteuid() != 0:
        not_run("namespaces and mounts need root")
    lock = tmp_path / f"{abandoned.FOLDERS}x" / "run-0" / abandoned.LOCK
    lock.parent.mkdir(parents=True)
    lab, elsewhere = Lab(lock.parent / "test0" / "lab", Layout()), Lab(tmp_path / "lab", Layout())
    try:
        for each in (lab, elsewhere):
            each.begin()
            Space.make("node1", each.directory / "nodes" / "node1")
        lock.write_text(str(os.getpid()))
        assert not {lab, elsewhere} & set(abandoned.abandoned_labs())
        lock.unlink()
        assert {lab, elsewhere} & set(abandoned.abandoned_labs()) == {lab}
    finally:
        for each in (lab, elsewhere):
            assert each.down() == []


@pytest.mark.slow
def test_stories_that_need_more_than_the_machine_has_wait_for_each_other(tmp_path: Path) -> None:
    """Each would see the other's mark if they ran beside each other."""
    mark = tmp_path / "mark"
    text = f"""
def test_it():
    mark = pathlib.Path({str(mark)!r})
    mark.touch(exist_ok=False)
    time.sleep(0.5)
    mark.unlink()
"""
    done = run.tell([story(tmp_path, name, text) for name in ("one", "two")], at_once=2, watches_given=1)
    assert [each.process.returncode for each in done] == [0, 0]


@pytest.mark.slow
def test_a_story_that_finds_no_room_does_not_hold_up_a_smaller_one(tmp_path: Path) -> None:
    """The first ends only when the last was told beside it; the one between needs all there is."""
    mark = tmp_path / "mark"
    wait = f"""
def test_it():
    while not pathlib.Path({str(mark)!r}).exists():
        time.sleep(0.01)
"""
    leave = f"""
def test_it():
    pathlib.Path({str(mark)!r}).touch()
"""
    stories = [
        story(tmp_path, "waits", wait, watches=2),
        story(tmp_path, "large", wait, watches=3),
        story(tmp_path, "small", leave, watches=1),
    ]
    done = run.tell(stories, at_once=3, watches_given=3)
    assert [each.process.returncode for each in done] == [0, 0, 0]


@pytest.mark.slow
def test_ctrl_c_ends_all_and_waits_until_they_have_cleaned_up(tmp_path: Path) -> None:
    text = """
@pytest.fixture
def lab(request):
    mark = pathlib.Path(__file__).with_suffix(".up")
    request.addfinalizer(lambda: mark.rename(mark.with_suffix(".down")))
    mark.touch()

def test_it(lab):
    time.sleep(600)
"""
    stories = [story(tmp_path, name, text) for name in ("one", "two")]

    def interrupt() -> None:
        until(lambda: len(list(tmp_path.glob("*.up"))) == 2, "both have begun", PATIENCE_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run.tell(stories, at_once=2, watches_given=9)
    assert len(list(tmp_path.glob("*.down"))) == 2
