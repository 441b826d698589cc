"""The argparse parser of all commands: exact flag names, errors in one line, help in a fixed layout."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from typing import Any, NoReturn

from bootbridge.cli.help_page import width
from bootbridge.cli.output import print_output
from bootbridge.errors import OperatorError


class Parser(argparse.ArgumentParser):
    """Raises OperatorError on bad usage. `{program}` in the texts is replaced by the program's name."""

    def __init__(
        self, program: str, description: str, examples: str, exit_codes: Mapping[int, str] | None = None
    ) -> None:
        codes = "".join(f"\n  {code:<4} {meaning}" for code, meaning in (exit_codes or {}).items())
        sections = [f"Exit codes:{codes}"] if codes else []
        sections += [f"Examples:\n{_indented(examples)}"]
        super().__init__(
            prog=program,
            description=_filled(description, program),
            epilog=_filled("\n\n".join(sections), program),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=width()),
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise OperatorError(message, hint=f"run '{self.prog} --help' for usage")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise SystemExit(status)

    def print_help(self, file: Any = None) -> None:
        print_output(self.format_help())


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def _filled(text: str, program: str) -> str:
    # Not str.format: examples contain the braces of jq expressions.
    return text.replace("{program}", program)


def _indented(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), "  ")
