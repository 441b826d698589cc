"""The one way in which commands and sub-commands are declared.

`Command` declares flags, help and a function. `CommandGroup` holds commands by name; `bootbridge` itself is
one, and so are `node`, `lab`, `firewall` and `image`. `LazyCommand` names the module whose `COMMAND` is
imported when the command is called, so that `bootbridge --help` and the proxies load nothing else.

Exit codes: 0 success, 1 error, 2 findings (something is wrong, or something remains), 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from bootbridge.cli.output import print_problem
from bootbridge.common.terminal import transient
from bootbridge.errors import OperatorError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bootbridge.cli.parser import Parser

    AddFlags = Callable[[argparse.ArgumentParser], None]


class ExitCode(IntEnum):
    OK = 0
    ERROR = 1
    FINDINGS = 2
    INTERRUPTED = 130


def require_root() -> None:
    """Raises the one error of all commands that need root."""
    if os.geteuid() != 0:
        raise OperatorError("permission denied", hint="run it as root")


class Runnable(Protocol):
    def main(self, argv: Sequence[str] | None, program: str) -> int: ...


@dataclass(frozen=True)
class Command:
    """One command. `run` gets the parsed flags and returns the exit code.

    Among the flags are `program`, the command's name, and `words`, its arguments as they were typed.
    """

    run: Callable[[argparse.Namespace], int]
    description: str = ""
    examples: str = "{program}"
    flags: AddFlags | None = None
    exit_codes: Mapping[int, str] = field(default_factory=dict)
    summary: str = ""  # one line for the list of the group; the help page starts with it
    passthrough: str = ""  # metavar of arguments that another program gets unchanged, as `flags.arguments`
    passes_help: bool = False  # --help is among them
    needs_root: bool = False

    def main(self, argv: Sequence[str] | None, program: str) -> int:
        """Parses the arguments and runs the command; returns the exit code."""
        words = list(sys.argv[1:] if argv is None else argv)
        return run_guarded(program, lambda: self.call([], words, program))

    def call(self, leading: list[str], words: list[str], program: str) -> int:
        """`leading` are flags that were given before the command's name."""
        own = [*leading, *words]
        if self.passthrough:
            wants_help = words[:1] in (["--help"], ["-h"]) and not self.passes_help
            own = words[:1] if wants_help else leading
        flags = self.parser(program).parse_args(own)
        flags.program, flags.words = program, words
        if self.passthrough:
            flags.arguments = words
        if self.needs_root:
            require_root()
        return self.run(flags)

    def parser(self, program: str) -> Parser:
        from bootbridge.cli.parser import Parser

        title = f"{self.summary[0].upper()}{self.summary[1:]}." if self.summary else ""
        parser = Parser(
            program,
            "\n\n".join(filter(None, (title, self.description))),
            self.examples,
            {ExitCode.OK: "success", ExitCode.ERROR: "error; the reason is on stderr", **self.exit_codes},
        )
        if self.flags:
            self.flags(parser)
        if self.passthrough:
            parser.add_argument("arguments", nargs="*", metavar=self.passthrough)
        return parser


@dataclass(frozen=True)
class LazyCommand:
    """A command in a module of its own, imported when it is called."""

    module: str
    summary: str

    def main(self, argv: Sequence[str] | None, program: str) -> int:
        command: Runnable = importlib.import_module(self.module).COMMAND
        return command.main(argv, program)


@dataclass(frozen=True)
class CommandGroup:
    """Commands by name, in sections with a title. Flags of the group are accepted before the name, too."""

    description: str
    sections: Mapping[str, Mapping[str, Command | LazyCommand]]
    examples: str
    flags: AddFlags | None = None
    default: str = ""  # the command that runs if none is named

    def commands(self) -> dict[str, Command | LazyCommand]:
        return {name: command for section in self.sections.values() for name, command in section.items()}

    def main(self, argv: Sequence[str] | None, program: str) -> int:
        """Runs the command that the first argument names; returns the exit code."""
        words = list(sys.argv[1:] if argv is None else argv)
        return run_guarded(program, lambda: self._run(words, program))

    def _run(self, words: list[str], program: str) -> int:
        leading, name, rest = self._split(words, program)
        if not name and not {"-h", "--help"} & set(leading):
            name = self.default
        command = self.commands().get(name)
        if command is None:
            self.parser(program).parse_args(leading)  # answers --help, refuses unknown flags
            if not name:
                raise OperatorError("command missing", hint=f"commands: {', '.join(self.commands())}")
            from bootbridge.cli.suggestion import suggestion

            hint = suggestion(name, self.commands()) or f"commands: {', '.join(self.commands())}"
            raise OperatorError(f"unknown command {name!r}", hint=hint)
        if isinstance(command, Command):
            called = f"{program} {name}"
            return run_guarded(called, lambda: command.call(leading, rest, called))
        return command.main([*leading, *rest], f"{program} {name}")

    def _split(self, words: list[str], program: str) -> tuple[list[str], str, list[str]]:
        """Returns the flags before the command's name, the name, and everything after it."""
        if not words or not words[0].startswith("-"):
            return [], words[0] if words else "", words[1:]
        known, commands = self.parser(program)._option_string_actions, self.commands()
        place = 0
        while place < len(words) and words[place].startswith("-"):
            flag = known.get(words[place])
            place += 2 if flag is not None and flag.nargs != 0 else 1
            # The value of a flag that only the command knows.
            if flag is None and words[place : place + 1] and words[place] not in commands:
                place += not words[place].startswith("-")
        return words[:place], words[place] if place < len(words) else "", words[place + 1 :]

    def parser(self, program: str) -> Parser:
        from bootbridge.cli.parser import Parser

        page = [self.description, *self._lists(), "`{program} COMMAND --help` explains a command."]
        parser = Parser(program, "\n\n".join(page), self.examples)
        if self.flags:
            self.flags(parser)
        parser.add_argument("command", metavar="COMMAND", nargs="?", help="one of the above")
        return parser

    def _lists(self) -> Iterator[str]:
        columns = max(map(len, self.commands()))
        for title, commands in self.sections.items():
            lines = [f"  {name:<{columns}}  {command.summary}" for name, command in commands.items()]
            yield "\n".join([f"{title}:", *lines])


def run_guarded(program: str, body: Callable[[], int]) -> int:
    """Calls `body` and turns what it raises into one line on stderr and an exit code."""
    try:
        return body()
    except OperatorError as error:
        print_problem(*(f"{program}: {line}" for line in error.lines))
        return ExitCode.ERROR
    except KeyboardInterrupt:
        print_problem(f"{program}: interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None
        return ExitCode.ERROR
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        denied = isinstance(error, PermissionError) and os.geteuid() != 0
        text = "permission denied (run it as root)" if denied else error.strerror or str(error)
        print_problem(f"{program}: {where}{text or type(error).__name__}")
        return ExitCode.ERROR
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else ExitCode.ERROR
    finally:
        transient.end()
