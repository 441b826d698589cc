"""All commands, flags and arguments as values, read from the declarations that parse the command line."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from bootbridge.cli.command import Command, CommandGroup, LazyCommand
from bootbridge.cli.help_page import shown_default
from bootbridge.cli.pflags import Flag, FlagSet
from bootbridge.cli.proxy_program import ProxyProgram

# The commands that are also programs of their own.
PROGRAMS = {"proxy-server": "server", "proxy-agent": "agent"}
_FILE_METAVARS = ("FILE", "BOOTSTRAP.IGN", "BASE", "OVERRIDE", "TARGET")
_FILE_SUFFIXES = ("-cert", "-key", "-file", "-path", "-log", "kubeconfig", "uds-name")


class Value(Enum):
    """What follows a flag, or is an argument."""

    NONE = "none"
    TEXT = "text"
    FILE = "file"
    DIRECTORY = "directory"


@dataclass(frozen=True)
class FlagSpec:
    """One flag: its spellings, what it takes, and its help."""

    names: tuple[str, ...]
    help: str
    value: Value = Value.NONE
    metavar: str = ""
    choices: tuple[str, ...] = ()
    repeats: bool = False
    group: str = ""


@dataclass(frozen=True)
class ArgumentSpec:
    """One positional argument."""

    metavar: str
    help: str
    value: Value
    choices: tuple[str, ...] = ()
    required: bool = True
    repeats: bool = False


@dataclass(frozen=True)
class CommandSpec:
    """One command. `path` are the words after `bootbridge`; a group has `commands`."""

    path: tuple[str, ...]
    summary: str
    description: str
    examples: str
    flags: tuple[FlagSpec, ...]
    arguments: tuple[ArgumentSpec, ...] = ()
    exit_codes: tuple[tuple[int, str], ...] = ()
    sections: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def name(self) -> str:
        return " ".join(self.path)

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(name for _, names in self.sections for name in names)


def specifications(root: CommandGroup) -> dict[str, CommandSpec]:
    """Returns all commands by name, depth first; the root has an empty name."""
    return {spec.name: spec for spec in _walk(root, (), "")}


def _walk(command: object, path: tuple[str, ...], summary: str) -> Iterator[CommandSpec]:
    if isinstance(command, LazyCommand):
        summary = command.summary
        command = importlib.import_module(command.module).COMMAND
    if isinstance(command, ProxyProgram):
        yield _proxy(command, path, summary)
    elif isinstance(command, Command):
        yield _command(command, path, command.summary or summary)
    elif isinstance(command, CommandGroup):
        yield _group(command, path, summary)
        for name, each in command.commands().items():
            yield from _walk(each, (*path, name), each.summary)


def _program(path: tuple[str, ...]) -> str:
    return " ".join(("bootbridge", *path))


def _command(command: Command, path: tuple[str, ...], summary: str) -> CommandSpec:
    parser = command.parser(_program(path))
    return CommandSpec(
        path,
        summary,
        command.description.replace("{program}", _program(path)) or parser.texts.description,
        parser.texts.examples,
        tuple(_flags(parser)),
        tuple(_arguments(parser)),
        tuple((int(code), meaning) for code, meaning in parser.texts.exit_codes.items()),
    )


def _group(group: CommandGroup, path: tuple[str, ...], summary: str) -> CommandSpec:
    parser = group.parser(_program(path))
    sections = tuple((title, tuple(commands)) for title, commands in group.sections.items())
    description = group.description.replace("{program}", _program(path))
    examples = parser.texts.examples
    return CommandSpec(path, summary, description, examples, tuple(_flags(parser)), sections=sections)


def _flags(parser: argparse.ArgumentParser) -> Iterator[FlagSpec]:
    for group in parser._action_groups:
        for action in group._group_actions:
            if action.option_strings and action.help is not argparse.SUPPRESS:
                takes = action.nargs != 0
                metavar = _metavar(action) if takes else ""
                yield FlagSpec(
                    tuple(action.option_strings),
                    _help(action, parser.prog),
                    _value(metavar) if takes else Value.NONE,
                    metavar,
                    tuple(map(str, action.choices or ())),
                    isinstance(action, argparse._AppendAction),
                    (group.title or "") if group.title != "options" else "",
                )


def _arguments(parser: argparse.ArgumentParser) -> Iterator[ArgumentSpec]:
    for action in parser._actions:
        if not action.option_strings:
            metavar = _metavar(action)
            choices = tuple(map(str, action.choices or ()))
            required, repeats = action.nargs not in ("?", "*"), action.nargs in ("*", "+")
            text = _help(action, parser.prog)
            yield ArgumentSpec(metavar, text, _value(metavar), choices, required, repeats)


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return "VALUE" if action.choices else action.dest.upper()


def _value(metavar: str) -> Value:
    if metavar == "DIR":
        return Value.DIRECTORY
    return Value.FILE if metavar in _FILE_METAVARS else Value.TEXT


def _help(action: argparse.Action, program: str) -> str:
    return (action.help or "") % {**vars(action), "prog": program}


# --- the two proxies


def _proxy(program: ProxyProgram, path: tuple[str, ...], summary: str) -> CommandSpec:
    flags = [_proxy_flag(flag, program.flags, group) for group, flag in _shown(program.flags)]
    flags += [FlagSpec(("-h", "--help"), "Show this page."), FlagSpec(("--version",), "Show the version.")]
    examples = program.examples.replace("{program}", _program(path))
    return CommandSpec(path, summary, program.synopsis, examples, tuple(flags))


def _shown(flags: FlagSet) -> Iterator[tuple[str, Flag]]:
    for group, members in flags.groups:
        yield from ((group, flag) for flag in members if not flag.deprecated)


def _proxy_flag(flag: Flag, flags: FlagSet, group: str) -> FlagSpec:
    kind, default = flags.kind(flag), shown_default(flag, flags)
    names = (f"-{flag.shorthand}", f"--{flag.name}") if flag.shorthand else (f"--{flag.name}",)
    value = Value.NONE if kind.bare is not None else Value.TEXT
    if value is Value.TEXT and flag.name.endswith(_FILE_SUFFIXES):
        value = Value.FILE
    text = flag.help + (f" (default {default})" if default else "")
    return FlagSpec(names, text, value, kind.word.upper(), flag.choices, kind.repeats, group)
