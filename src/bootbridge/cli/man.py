"""``bootbridge man``: shows the manual page of a command, or writes all pages."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import print_output, result_terminal
from bootbridge.cli.suggestion import suggestion
from bootbridge.common.files import Asset, write_error, write_file
from bootbridge.common.terminal.figures import counted
from bootbridge.common.terminal.terminal import Mark
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Shows the manual page of a command with man(1); without a terminal or man(1), prints its source (roff).
With --output, writes the pages of all commands, of proxy-server and of proxy-agent to a directory."""

_EXAMPLES = """
{program} up
{program} node init
{program} --output /usr/local/share/man/man1
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "command", metavar="COMMAND", nargs="*", help="a command (default: bootbridge itself)"
    )
    parser.add_argument("--output", metavar="DIR", help="write all pages to this directory")


def _run(flags: argparse.Namespace) -> int:
    from bootbridge.cli.main import COMMAND as ROOT
    from bootbridge.cli.reference import man
    from bootbridge.cli.reference.specification import specifications

    commands = specifications(ROOT)
    if flags.output:
        return _write(man.pages(commands), Path(flags.output))
    name = " ".join(flags.command)
    if name not in commands:
        hint = suggestion(name, commands) or "run 'bootbridge --help' for the commands"
        raise OperatorError(f"unknown command {name!r}", hint=hint)
    return _show(man.page(commands[name], commands))


def _write(pages: dict[str, str], directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(directory, error) from error
    for name, text in pages.items():
        write_file(directory / name, Asset(text.encode()))
    shown = directory / "bootbridge.1"
    result_terminal().summary(
        Mark.GOOD,
        f"{counted(len(pages), 'page')} in {directory}",
        next_steps=[(f"man -l {shown}", "read one")],
        apart=False,
    )
    return ExitCode.OK


def _show(text: str) -> int:
    program = shutil.which("man") if sys.stdout.isatty() else None
    if program is None:
        return print_output(text)
    with tempfile.NamedTemporaryFile("w", prefix="bootbridge-", suffix=".1") as file:
        file.write(text)
        file.flush()
        return subprocess.run([program, "-l", file.name]).returncode


COMMAND = Command(
    _run, _DESCRIPTION, _EXAMPLES, _add_flags, exit_codes={ExitCode.ERROR: "no command has that name"}
)
