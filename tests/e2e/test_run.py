"""The runner of `make e2e`: runs every test once, limits what runs at a time, ends all scenarios together."""

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
from bootbridge.lab.namespaces import NodeNamespaces
from tests.e2e import run, stale_labs
from tests.e2e.scenarios import SCENARIOS, LabScenario
from tests.support.lab import until
from tests.support.not_run import needs_program, not_run
from tests.support.process_program import ROOT

WAIT_SECONDS = 60.0
HEADER = "import pathlib, pytest, time\npytestmark = pytest.mark.e2e\n"
PASSES = "def test_it():\n    pass\n"
SLEEPS = """
def test_it(request):
    mark = pathlib.Path(__file__).with_suffix(".up")
    request.addfinalizer(lambda: mark.rename(mark.with_suffix(".down")))
    mark.touch()
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RESULTS", tmp_path)


def scenario(folder: Path, name: str, text: str, inotify_instances: int = 1) -> LabScenario:
    path = folder / f"test_{name}.py"
    path.write_text(HEADER + text)
    return LabScenario(name, (str(path),), inotify_instances)


def test_every_end_to_end_test_belongs_to_one_scenario() -> None:
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-m", "e2e", "tests/e2e", "tests/lab"]
    found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    tests = [line for line in found if "::" in line]
    owners = {test: [each.name for each in SCENARIOS if each.contains(test)] for test in tests}
    assert {test: names for test, names in owners.items() if len(names) != 1} == {}
    assert {name for (name,) in owners.values()} == {each.name for each in SCENARIOS}


@pytest.mark.slow
def test_failed_scenario_is_printed_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = scenario(tmp_path, "bad", "def test_it():\n    assert not 'the reason'\n")
    good = scenario(tmp_path, "good", PASSES)
    done = run.run_scenarios([bad, good], at_once=1, inotify_instances=9)
    assert [(each.scenario.name, each.process.returncode) for each in done] == [("bad", 1), ("good", 0)]
    assert "the reason" in capsys.readouterr().out


@pytest.mark.slow
def test_scenario_without_executed_tests_is_reported_as_not_run(tmp_path: Path) -> None:
    skipped = "def test_skipped():\n    pytest.skip('no etcd')\n"
    scenarios = [scenario(tmp_path, "none", skipped), scenario(tmp_path, "some", skipped + PASSES)]
    done = run.run_scenarios(scenarios, at_once=2, inotify_instances=9)
    results = {each.scenario.name: each.result for each in done}
    assert results["none"] == "NOT RUN"
    assert results["some"].endswith(", but 1 NOT RUN")


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_missing_requirement_is_printed_and_fails_only_under_ci(
    ci: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(sys, "argv", ["run"])
    monkeypatch.setattr(run, "missing", lambda: "missing: etcd")
    monkeypatch.setattr(run, "run_scenarios", lambda *_: pytest.fail("a scenario was started"))
    assert run.main() == code
    assert capsys.readouterr().out == "NOT RUN: end to end, missing: etcd\n"


@pytest.mark.slow
def test_hanging_scenario_is_interrupted_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SCENARIO_SECONDS", 0.0)
    hangs = scenario(tmp_path, "endless", "def test_it():\n    time.sleep(3600)\n")
    (done,) = run.run_scenarios([hangs], 1, 9)
    assert done.result.startswith("FAILED in ")
    assert done.result.endswith("(timed out)")


@pytest.mark.slow
def test_scenarios_end_when_the_runner_is_killed(tmp_path: Path) -> None:
    path = scenario(tmp_path, "one", SLEEPS).paths[0]
    script = f"""
import pathlib
from tests.e2e import run
from tests.e2e.scenarios import LabScenario
run.RESULTS = pathlib.Path({str(tmp_path)!r})
run.run_scenarios([LabScenario("one", ({path!r},), inotify_instances=1)], 1, 9)
"""
    runner = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL)
    until((tmp_path / "test_one.up").exists, "the test has started", WAIT_SECONDS)
    runner.kill()
    runner.wait()
    until((tmp_path / "test_one.down").exists, "the test has cleaned up", WAIT_SECONDS)


@needs_program("ip", "iproute2")
def test_lab_is_stale_only_when_its_test_run_has_ended(tmp_path: Path) -> None:
    """Labs of running test runs, and labs outside pytest's directories, are not stale."""
    if os.geteuid() != 0:
        not_run("namespaces and mounts need root")
    lock = tmp_path / f"{stale_labs.FOLDERS}x" / "run-0" / stale_labs.LOCK
    lock.parent.mkdir(parents=True)
    lab, elsewhere = Lab(lock.parent / "test0" / "lab", Layout()), Lab(tmp_path / "lab", Layout())
    try:
        for each in (lab, elsewhere):
            each.create_directory()
            NodeNamespaces.create("node1", each.directory / "nodes" / "node1")
        lock.write_text(str(os.getpid()))
        assert not {lab, elsewhere} & set(stale_labs.stale_labs())
        lock.unlink()
        assert {lab, elsewhere} & set(stale_labs.stale_labs()) == {lab}
    finally:
        for each in (lab, elsewhere):
            assert each.down() == []


@pytest.mark.slow
def test_scenarios_wait_for_inotify_instances(tmp_path: Path) -> None:
    """Each would find the other's mark if they ran at the same time."""
    mark = tmp_path / "mark"
    text = f"""
def test_it():
    mark = pathlib.Path({str(mark)!r})
    mark.touch(exist_ok=False)
    time.sleep(0.5)
    mark.unlink()
"""
    scenarios = [scenario(tmp_path, name, text) for name in ("one", "two")]
    done = run.run_scenarios(scenarios, at_once=2, inotify_instances=1)
    assert [each.process.returncode for each in done] == [0, 0]


@pytest.mark.slow
def test_waiting_scenario_does_not_block_a_smaller_one(tmp_path: Path) -> None:
    """The first ends only after the last has started; the second needs all instances."""
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
    scenarios = [
        scenario(tmp_path, "waits", wait, inotify_instances=2),
        scenario(tmp_path, "large", wait, inotify_instances=3),
        scenario(tmp_path, "small", leave, inotify_instances=1),
    ]
    done = run.run_scenarios(scenarios, at_once=3, inotify_instances=3)
    assert [each.process.returncode for each in done] == [0, 0, 0]


@pytest.mark.slow
def test_sigint_ends_all_scenarios_and_waits_for_their_clean_up(tmp_path: Path) -> None:
    scenarios = [scenario(tmp_path, name, SLEEPS) for name in ("one", "two")]

    def interrupt() -> None:
        until(lambda: len(list(tmp_path.glob("*.up"))) == 2, "both have started", WAIT_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run.run_scenarios(scenarios, at_once=2, inotify_instances=9)
    assert len(list(tmp_path.glob("*.down"))) == 2
