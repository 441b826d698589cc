"""`bootbridge lab`: flags stand where one expects them, words for other programs stay as they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bootbridge.cli import lab as command
from bootbridge.cli.main import main
from bootbridge.errors import OperatorError
from bootbridge.lab import components
from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE
from tests.support.not_run import not_run

ACTIONS = (
    *("prepare", "up", "init", "demo", "tunnel", "remove-tunnel", "permanent-apiserver"),
    *("kubectl", "shell", "logs", "status", "down"),
)


def words_of(action: str, *argv: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What an action is called with."""
    seen: dict[str, object] = {}

    def record(flags: object) -> int:
        seen.update(vars(flags))
        return 0

    it = command._COMMANDS[action]
    monkeypatch.setitem(command._COMMANDS, action, replace(it, run=record))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["lab", *argv]) == 0
    return seen


@pytest.mark.parametrize(
    "argv",
    [
        ("up", "--nodes", "3", "--dir", "/x"),
        ("--dir", "/x", "up", "--nodes=3"),
        ("--nodes", "3", "--dir=/x", "up"),
        ("--nodes=3", "up", "--dir", "/x"),
    ],
)
def test_flags_of_the_lab_may_stand_before_or_after_the_action(
    argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = words_of("up", *argv, monkeypatch=monkeypatch)
    assert (seen["dir"], seen["nodes"]) == ("/x", 3)


@pytest.mark.parametrize(
    ("action", "rest"),
    [
        ("kubectl", ["get", "pods", "--dir", "y", "-A", "--", "--help"]),
        ("kubectl", ["--help"]),
        ("shell", ["node1", "ls", "--dir", "/y", "-l"]),
        ("tunnel", ["--dry-run", "--dir=/y"]),
        ("remove-tunnel", ["--json"]),
    ],
)
def test_words_for_another_program_are_handed_on_as_they_are(
    action: str, rest: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = words_of(action, "--dir", "/x", action, *rest, monkeypatch=monkeypatch)
    assert (seen["dir"], seen["arguments"]) == ("/x", rest)


@pytest.mark.parametrize("action", [each for each in ACTIONS if each != "kubectl"])
def test_every_action_explains_itself_with_an_example(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", action, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"bootbridge lab {action}" in text.partition("Examples:")[2]


def test_no_action_is_left_out_here() -> None:
    assert set(ACTIONS) == set(command._COMMANDS)


def test_the_help_names_every_action(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {action} " in text for action in ACTIONS)


@pytest.mark.parametrize("argv", [[], ["--dir", "/x"], ["upp"]])
def test_without_a_known_action_the_known_ones_are_named(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", *argv]) == 1
    assert "(commands: prepare, up, " in capsys.readouterr().err


def test_the_go_image_has_a_short_name() -> None:
    assert command._image_asked_for(["--image", "konnectivity", "--dry-run"]) == (
        KONNECTIVITY_IMAGE,
        ["--dry-run"],
    )
    assert command._image_asked_for(["--image=konnectivity"]) == (KONNECTIVITY_IMAGE, [])
    assert command._image_asked_for(["--image=other/x:1"]) == (TUNNEL_IMAGE, ["--image=other/x:1"])


@pytest.mark.parametrize("action", [each for each in ACTIONS if each != "prepare"])
def test_who_is_not_root_is_told_so_before_anything_is_made(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    more = ["node1"] if action == "permanent-apiserver" else []
    assert main(["lab", "--dir", str(tmp_path / "lab"), action, *more]) == 1
    said = capsys.readouterr().err
    assert "run it as root" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "lab").exists()


def test_a_missing_package_is_named_with_its_cure_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(components.PACKAGED, "surely-not-here", "surely-a-package")
    assert main(["lab", "up", "--dir", str(tmp_path / "lab"), "--bin-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "surely-a-package" in said.partition("apt-get install ")[2]
    assert "kube-apiserver" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "lab").exists()


def test_a_directory_that_nodes_would_cover_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(components, "find", lambda *_, **__: None)
    assert main(["lab", "up", "--dir", "/var/lib/bootbridge-lab-test"]) == 1
    assert "--dir" in capsys.readouterr().err
    assert not Path("/var/lib/bootbridge-lab-test").exists()


def test_a_production_api_server_is_not_put_over_one_that_kubeadm_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its manifest would name an etcd that blank instances do not have."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(components, "find", lambda *_, **__: None)
    command.Lab(tmp_path / "lab", command.Layout(2, control_planes=1)).create_directory()
    assert main(["lab", "permanent-apiserver", "node1", "--dir", str(tmp_path / "lab")]) == 1
    assert "without --bootstrapper" in capsys.readouterr().err


def test_what_is_no_lab_s_is_refused_as_a_lab_s_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `up` and `demo`, which begin by removing what an earlier lab has left."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(components, "find", lambda *_, **__: components.Components({}, tmp_path))
    (tmp_path / "logs").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    for action in ("up", "demo"):
        assert main(["lab", action, "--dir", str(tmp_path)]) == 1
        assert "--dir: " in (said := capsys.readouterr().err)
        assert "logs, notes.txt" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "notes.txt"]


def test_ctrl_c_takes_down_what_was_begun_and_a_second_does_not_end_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    def down(_: object) -> list[str]:
        os.kill(os.getpid(), signal.SIGINT)
        return ["a mount"]

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(components, "find", lambda *_, **__: components.Components({}, tmp_path))
    monkeypatch.setattr(command.LabBuilder, "bring_up", interrupted)
    monkeypatch.setattr(command.Lab, "down", down)
    assert main(["lab", "up", "--dir", str(tmp_path / "lab")]) == 130
    assert "left behind: a mount" in capsys.readouterr().err


def test_two_commands_do_not_bring_one_lab_up_and_down_at_a_time(tmp_path: Path) -> None:
    lab = command.Lab(tmp_path, command.Layout())
    with lab.locked(), pytest.raises(OperatorError, match="another command"), lab.locked():
        pass
    with lab.locked():
        pass


def test_down_where_there_is_no_lab_says_so(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        not_run("a lab is root's to take down")
    argv = [sys.executable, "-m", "bootbridge.cli.main", "lab", "down", "--dir", str(tmp_path / "none")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, "There is no lab" in done.stdout) == (0, True)
