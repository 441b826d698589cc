"""Man pages: one per command, without a warning of the two formatters, with every flag."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from bootbridge.cli import main
from bootbridge.cli.reference.specification import PROGRAMS, specifications
from tests.cli.reference.shells import require

COMMANDS = specifications(main.COMMAND)
# A page is the same for one version, whenever it is built.
NO_DATE = "missing date"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    assert main.main(["man", "--output", str(tmp_path / "man")]) == 0
    return tmp_path / "man"


def rendered(page: Path, columns: int = 200) -> str:
    """The page as groff shows it, without bold and underlined characters."""
    argv = [require("groff"), "-man", "-ww", "-Tutf8", f"-rLL={columns}n", "-rHY=0", "-P-c", str(page)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return re.sub(".\x08|\x1b\\[[0-9;]*m", "", done.stdout)


def test_there_is_a_page_for_every_command(pages: Path) -> None:
    names = {"-".join(["bootbridge", *command.path]) + ".1" for command in COMMANDS.values()}
    assert {path.name for path in pages.iterdir()} == names | {f"{program}.1" for program in PROGRAMS}


def test_mandoc_finds_nothing_wrong(pages: Path) -> None:
    argv = [require("mandoc"), "-T", "lint", "-W", "warning", *map(str, sorted(pages.iterdir()))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert [line for line in (done.stdout + done.stderr).splitlines() if NO_DATE not in line] == []


def test_mandoc_would_find_an_error(tmp_path: Path) -> None:
    """The check above can fail."""
    page = tmp_path / "bad.1"
    page.write_text('.TH BAD 1 "2026-01-01"\n.SH NAME\nbad \\- bad\n.fi\n.TP\n')
    argv = [require("mandoc"), "-T", "lint", "-W", "warning", str(page)]
    assert subprocess.run(argv, capture_output=True, check=False).returncode != 0


def test_every_flag_argument_and_exit_code_is_on_the_page(pages: Path) -> None:
    for command in COMMANDS.values():
        text = rendered(pages / ("-".join(["bootbridge", *command.path]) + ".1"))
        for flag in command.flags:
            assert ", ".join(flag.names) in text, (command.name, flag.names)
        for argument in command.arguments:
            assert argument.metavar in text, (command.name, argument.metavar)
        for name in command.commands:
            assert re.search(rf"^ +{name}\b", text, re.MULTILINE), (command.name, name)
        assert len(re.findall(r"(?m)^ {7}\d+ ", text.partition("EXIT STATUS")[2])) >= len(command.exit_codes)


def test_the_page_of_a_program_uses_its_own_name(pages: Path) -> None:
    text = rendered(pages / "proxy-server.1")
    assert "proxy-server - run the proxy-server" in text
    assert "bootbridge server" not in text


def test_texts_cannot_become_requests(pages: Path) -> None:
    """No line of a text starts with a dot or a quote, and no flag loses its hyphens."""
    known = (".TH", ".SH", ".SS", ".TP", ".PP", ".nf", ".fi", ".sp", ".B")
    for page in pages.iterdir():
        lines = page.read_text().splitlines()
        assert [line for line in lines if line[:1] in (".", "'") and line.split()[0] not in known] == []
        assert [line for line in lines if re.search(r"(?<!\\)--", line)] == []


def test_one_page_is_printed_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["man", "node", "init"]) == 0
    assert capsys.readouterr().out.startswith('.TH "BOOTBRIDGE-NODE-INIT" 1 ')
    assert main.main(["man", "docter"]) == 1
    assert capsys.readouterr().err == "bootbridge man: unknown command 'docter' (did you mean doctor?)\n"


def test_man_shows_the_pages(pages: Path) -> None:
    """With the program that people use, in a narrow terminal."""
    environment = {
        **os.environ,
        "MANPATH": str(pages.parent),
        "MANWIDTH": "60",
        "LC_ALL": "C.UTF-8",
        "MANPAGER": "cat",
    }
    argv = [require("man"), "--warnings", "-l", str(pages / "bootbridge-up.1")]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == ""
    assert "bootbridge-up" in done.stdout
