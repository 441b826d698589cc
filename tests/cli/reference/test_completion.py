"""Completion in bash, zsh and fish offers every command, flag and choice of the declaration."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootbridge.cli import main
from bootbridge.cli.reference.specification import PROGRAMS, CommandSpec, Value, specifications
from bootbridge.cli.schema import SCHEMAS
from tests.cli.reference.shells import offered

SHELLS = ("bash", "zsh", "fish")
COMMANDS = specifications(main.COMMAND)


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main.main(["completion", shell]) == 0
    path = tmp_path / f"completion.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


def typed(command: CommandSpec, *words: str) -> str:
    return " ".join(["bootbridge", *command.path, *words])


def test_the_declaration_is_complete() -> None:
    """What the tests below compare with is not empty, and contains what everybody uses."""
    assert {"", "up", "node init", "firewall create", "server", "lab kubectl"} <= set(COMMANDS)
    platform = next(flag for flag in COMMANDS["up"].flags if "--platform" in flag.names)
    assert {"aws", "gcp", "none"} <= set(platform.choices)
    assert next(flag for flag in COMMANDS["server"].flags if "--mode" in flag.names).choices == (
        "grpc",
        "http-connect",
    )
    assert len(COMMANDS["agent"].flags) > 30


def test_every_flag_of_every_command_is_offered(shell: str, script: Path) -> None:
    commands = list(COMMANDS.values())
    answers = offered(shell, script, [typed(command, "--") for command in commands])
    for command, answer in zip(commands, answers, strict=True):
        wanted = {name for flag in command.flags for name in flag.names if name.startswith("--")}
        assert wanted - {each.rstrip("=") for each in answer} == set(), command.name


def test_every_command_is_offered(shell: str, script: Path) -> None:
    groups = [command for command in COMMANDS.values() if command.commands]
    answers = offered(shell, script, [typed(group, "") for group in groups])
    for group, answer in zip(groups, answers, strict=True):
        assert answer == set(group.commands), group.name


def test_every_choice_of_a_flag_is_offered(shell: str, script: Path) -> None:
    """After a blank and after an equals sign; the latter is joined to the flag by some shells."""
    cases = [
        (typed(command, next(name for name in flag.names if name.startswith("--"))), flag.choices)
        for command in COMMANDS.values()
        for flag in command.flags
        if flag.choices
    ]
    assert len(cases) > 20
    answers = offered(shell, script, [f"{line} " for line, _ in cases])
    assert answers == [set(choices) for _, choices in cases]
    answers = offered(shell, _moved(script), [f"{line}=" for line, _ in cases])
    assert [{each.rpartition("=")[2] for each in answer} for answer in answers] == [
        set(choices) for _, choices in cases
    ]


def test_files_and_directories_are_offered_where_a_flag_takes_one(shell: str, script: Path) -> None:
    (script.parent / "zfile.yaml").write_text("")
    (script.parent / "zdirectory").mkdir()
    file, directory, words, text, argument = offered(
        shell,
        script,
        [
            "bootbridge up --kubeconfig z",
            "bootbridge render --output z",
            "bootbridge schema ",
            "bootbridge up --infra-id z",
            "bootbridge check z",
        ],
    )
    assert {each.rstrip("/") for each in file} == {"zfile.yaml", "zdirectory"}
    assert {each.rstrip("/") for each in directory} == {"zdirectory"}
    assert words == set(SCHEMAS)
    assert text == set()
    assert {each.rstrip("/") for each in argument} == {"zfile.yaml", "zdirectory"}


def test_values_of_flags_are_not_taken_for_commands(shell: str, script: Path) -> None:
    """A directory named `up`; flags before the command; a command of a group."""
    before, value, group = offered(
        shell,
        script,
        [
            "bootbridge lab --dir up ",
            "bootbridge up --infra-id down --dry",
            "bootbridge firewall create --app",
        ],
    )
    assert "kubectl" in before
    assert value == {"--dry-run"}
    assert group == {"--apply"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_proxy_programs_are_completed_too(shell: str, script: Path, program: str) -> None:
    flags = COMMANDS[PROGRAMS[program]].flags
    (answer,) = offered(shell, script, [f"{program} --"])
    wanted = {name for flag in flags for name in flag.names if name.startswith("--")}
    assert wanted - {each.rstrip("=") for each in answer} == set()
    assert {flag.value for flag in flags} == {Value.NONE, Value.TEXT, Value.FILE}


def _moved(script: Path) -> Path:
    """A second folder, because a shell keeps files in the first."""
    folder = script.parent / "second"
    folder.mkdir()
    return script.rename(folder / script.name)
