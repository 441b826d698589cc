"""``bootbridge completion``: prints a completion script for a shell."""

from __future__ import annotations

import argparse
from typing import Final

from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import hint_terminal, print_output

_DESCRIPTION = """\
Prints a completion script for commands, flags, their choices and file names, of bootbridge, proxy-server and
proxy-agent. The script is static: a TAB starts no program. Generate it again after an update."""

_EXAMPLES = """
# bash, for this shell, and for all later ones
source <({program} bash)
{program} bash > ~/.local/share/bash-completion/completions/bootbridge
# zsh: a directory of $fpath, before compinit
{program} zsh > "${fpath[1]}/_bootbridge"
# fish
{program} fish > ~/.config/fish/completions/bootbridge.fish
"""
# Where the script of each shell is usually stored.
SHELLS: Final = {
    "bash": "~/.local/share/bash-completion/completions/bootbridge",
    "zsh": '"${fpath[1]}/_bootbridge"',
    "fish": "~/.config/fish/completions/bootbridge.fish",
}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of: {', '.join(SHELLS)}")


def _run(flags: argparse.Namespace) -> int:
    from bootbridge.cli.main import COMMAND as ROOT
    from bootbridge.cli.reference import bash, fish, zsh
    from bootbridge.cli.reference.specification import specifications

    generator = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}[flags.shell]
    print_output(generator(specifications(ROOT)))
    command = f"bootbridge completion {flags.shell} > {SHELLS[flags.shell]}"
    hint_terminal().next_steps([(command, "install it for all new shells")])
    return ExitCode.OK


COMMAND = Command(_run, _DESCRIPTION, _EXAMPLES, _add_flags)
