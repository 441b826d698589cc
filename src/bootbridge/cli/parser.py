"""The argparse parser of all commands: exact flag names, errors in one line, help in a fixed layout."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from bootbridge.cli.help_page import reflow, width
from bootbridge.cli.output import print_output
from bootbridge.cli.suggestion import suggestion
from bootbridge.errors import OperatorError

# Texts of argparse, and the terms of all other errors.
_ARGPARSE_TEXTS = {
    "invalid int value:": "invalid number",
    "expected one argument": "value missing",
    "not allowed with argument": "not allowed together with",
}


@dataclass(frozen=True)
class ParserTexts:
    """The texts of a help page, for the man page."""

    description: str
    examples: str
    exit_codes: Mapping[int, str]


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps the description of a group of flags too; the others are already wrapped."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Does not break flags at their hyphens: people copy them."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if not indent:
            return super()._fill_text(text, width, indent)
        return textwrap.fill(
            text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )


class Parser(argparse.ArgumentParser):
    """Raises OperatorError on bad usage. `{program}` in the texts is replaced by the program's name."""

    def __init__(
        self, program: str, description: str, examples: str, exit_codes: Mapping[int, str] | None = None
    ) -> None:
        self.texts = ParserTexts(_filled(description, program), _filled(examples, program), exit_codes or {})
        codes = "".join(f"\n  {code:<4} {meaning}" for code, meaning in (exit_codes or {}).items())
        columns = width()
        sections = [reflow(f"Exit codes:{codes}", columns)] if codes else []
        sections += [f"Examples:\n{_indented(examples)}"]
        super().__init__(
            prog=program,
            description=reflow(_filled(description, program), columns),
            epilog=_filled("\n\n".join(sections), program),
            formatter_class=lambda prog: _Formatter(prog, width=columns),
            allow_abbrev=False,
        )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Names the flag, and the choice that was probably meant; argparse shows `repr` of each choice."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        raise OperatorError(
            f"invalid value {value!r}",
            subject=action.option_strings[-1] if action.option_strings else str(action.metavar),
            hint=suggestion(str(value), choices) or f"one of: {', '.join(choices)}",
        )

    def error(self, message: str) -> NoReturn:
        """Raises OperatorError; of what argparse says of one argument, the subject is its last spelling."""
        found = re.fullmatch(r"argument (?:\S*/)?(\S+): (.*)", message, re.DOTALL)
        subject, problem = found.groups() if found else ("", message)
        for theirs, ours in _ARGPARSE_TEXTS.items():
            problem = problem.replace(theirs, ours)
        hint = self._did_you_mean(message) or f"run '{self.prog} --help' for usage"
        raise OperatorError(problem, subject=subject, hint=hint)

    def _did_you_mean(self, message: str) -> str:
        _, found, words = message.partition("unrecognized arguments: ")
        flag = words.split(" ")[0].partition("=")[0]
        return suggestion(flag, self._option_string_actions) if found and flag.startswith("--") else ""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise SystemExit(status)

    def format_help(self) -> str:
        self.usage = self._short_usage()
        return super().format_help()

    def _short_usage(self) -> str:
        """The flags that are required, and the arguments; the other flags are listed below."""
        words = [self.prog]
        for action in self._actions:
            if action.option_strings and action.required:
                words.append(f"{action.option_strings[-1]} {action.metavar}")
        words.append("[flags]")
        for action in self._actions:
            if not action.option_strings:
                shown = f"{action.metavar}{' …' if action.nargs == '*' else ''}"
                words.append(f"[{shown}]" if action.nargs in ("?", "*") else shown)
        text = " ".join(words).replace("%", "%%")
        columns = width() - len("usage: ")
        return textwrap.fill(text, columns, subsequent_indent="    ", break_on_hyphens=False)

    def print_help(self, file: Any = None) -> None:
        print_output(self.format_help())


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def _filled(text: str, program: str) -> str:
    # Not str.format: examples contain the braces of jq expressions.
    return text.replace("{program}", program)


def _indented(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), "  ")
