"""`bootbridge lab`: flags, arguments passed to other programs, and errors before anything is created."""

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

COMMANDS = (
    *("prepare", "up", "init", "demo", "tunnel", "remove-tunnel", "permanent-apiserver"),
    *("kubectl", "shell", "logs", "status", "down"),
)


def flags_of(name: str, *argv: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Returns the flags that the command's function gets."""
    seen: dict[str, object] = {}

    def record(flags: object) -> int:
        seen.update(vars(flags))
        return 0

    it = command._COMMANDS[name]
    monkeypatch.setitem(command._COMMANDS, name, replace(it, run=record))
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
def test_lab_flags_are_accepted_before_and_after_the_command(
    argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = flags_of("up", *argv, monkeypatch=monkeypatch)
    assert (seen["dir"], seen["nodes"]) == ("/x", 3)


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("kubectl", ["get", "pods", "--dir", "y", "-A", "--", "--help"]),
        ("kubectl", ["--help"]),
        ("shell", ["node1", "ls", "--dir", "/y", "-l"]),
        ("tunnel", ["--dry-run", "--dir=/y"]),
        ("remove-tunnel", ["--json"]),
    ],
)
def test_arguments_of_another_program_are_passed_unchanged(
    name: str, rest: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = flags_of(name, "--dir", "/x", name, *rest, monkeypatch=monkeypatch)
    assert (seen["dir"], seen["arguments"]) == ("/x", rest)


@pytest.mark.parametrize("name", [each for each in COMMANDS if each != "kubectl"])
def test_help_of_every_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"bootbridge lab {name}" in text.partition("Examples:")[2]


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_without_a_lab_the_help_of_kubectl_is_that_of_the_command(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["lab", "--dir", str(tmp_path / "none"), "kubectl", flag]) == 0
    assert "bootbridge lab kubectl --on node1 get nodes" in capsys.readouterr().out
    assert main(["lab", "--dir", str(tmp_path / "none"), "kubectl", "get", "pods", flag]) == 1


def test_all_commands_are_tested_here() -> None:
    assert set(COMMANDS) == set(command._COMMANDS)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("argv", [[], ["--dir", "/x"], ["frobnicate"]])
def test_without_a_known_name_the_known_ones_are_named(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", *argv]) == 1
    assert "(commands: prepare, up, " in capsys.readouterr().err


def test_konnectivity_is_a_short_name_for_the_go_image() -> None:
    assert command._split_image(["--image", "konnectivity", "--dry-run"]) == (
        KONNECTIVITY_IMAGE,
        ["--dry-run"],
    )
    assert command._split_image(["--image=konnectivity"]) == (KONNECTIVITY_IMAGE, [])
    assert command._split_image(["--image=other/x:1"]) == (TUNNEL_IMAGE, ["--image=other/x:1"])


@pytest.mark.parametrize("name", [each for each in COMMANDS if each != "prepare"])
def test_non_root_user_is_rejected_before_anything_is_created(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    more = ["node1"] if name == "permanent-apiserver" else []
    assert main(["lab", "--dir", str(tmp_path / "lab"), name, *more]) == 1
    err = capsys.readouterr().err
    assert "run it as root" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "lab").exists()


def test_missing_packages_are_listed_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(components.PACKAGED, "surely-not-here", "surely-a-package")
    assert main(["lab", "up", "--dir", str(tmp_path / "lab"), "--bin-dir", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "surely-a-package" in err.partition("apt-get install ")[2]
    assert "kube-apiserver" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "lab").exists()


def test_directory_below_a_node_mount_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(components, "find", lambda *_, **__: None)
    assert main(["lab", "up", "--dir", "/var/lib/bootbridge-lab-test"]) == 1
    assert "--dir" in capsys.readouterr().err
    assert not Path("/var/lib/bootbridge-lab-test").exists()


def test_permanent_apiserver_needs_a_lab_with_a_bootstrap_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its manifest names the bootstrap node's etcd, which blank instances do not have."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(components, "find", lambda *_, **__: None)
    command.Lab(tmp_path / "lab", command.Layout(2, control_planes=1)).create_directory()
    assert main(["lab", "permanent-apiserver", "node1", "--dir", str(tmp_path / "lab")]) == 1
    assert "without --bootstrapper" in capsys.readouterr().err


def test_directory_with_foreign_files_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `up` and `demo`, which first remove the remains of an earlier lab."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(components, "find", lambda *_, **__: components.Components({}, tmp_path))
    (tmp_path / "logs").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("up", "demo"):
        assert main(["lab", name, "--dir", str(tmp_path)]) == 1
        assert "--dir: " in (err := capsys.readouterr().err)
        assert "logs, notes.txt" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "notes.txt"]


def test_ctrl_c_removes_the_lab_and_a_second_one_is_ignored(
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
    assert "not removed: a mount" in capsys.readouterr().err


def test_lab_is_locked_while_it_is_brought_up_or_down(tmp_path: Path) -> None:
    lab = command.Lab(tmp_path, command.Layout())
    with lab.locked(), pytest.raises(OperatorError, match="another command"), lab.locked():
        pass
    with lab.locked():
        pass


def test_down_without_a_lab_succeeds(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        not_run("bootbridge lab down needs root")
    argv = [sys.executable, "-m", "bootbridge.cli.main", "lab", "down", "--dir", str(tmp_path / "none")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, "No lab found" in done.stdout) == (0, True)
