"""The argparse parser of all commands: exact flag names, errors in one line, help in a fixed layout."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from bootbridge.cli.help_page import width
from bootbridge.cli.output import print_output
from bootbridge.cli.suggestion import suggestion
from bootbridge.errors import OperatorError


@dataclass(frozen=True)
class ParserTexts:
    """The texts of a help page, for the man page."""

    description: str
    examples: str
    exit_codes: Mapping[int, str]


class Parser(argparse.ArgumentParser):
    """Raises OperatorError on bad usage. `{program}` in the texts is replaced by the program's name."""

    def __init__(
        self, program: str, description: str, examples: str, exit_codes: Mapping[int, str] | None = None
    ) -> None:
        self.texts = ParserTexts(_filled(description, program), _filled(examples, program), exit_codes or {})
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
        raise OperatorError(
            message, hint=self._did_you_mean(message) or f"run '{self.prog} --help' for usage"
        )

    def _did_you_mean(self, message: str) -> str:
        _, found, words = message.partition("unrecognized arguments: ")
        flag = words.split(" ")[0].partition("=")[0]
        return suggestion(flag, self._option_string_actions) if found and flag.startswith("--") else ""

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
