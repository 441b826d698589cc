"""Man pages in roff, one per command."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping

from bootbridge import __version__
from bootbridge.cli.reference.specification import PROGRAMS, CommandSpec, FlagSpec

_CHARACTERS = {"…": "...", "→": "->", "–": "\\(en", "×": "\\(mu", "≥": ">=", "≤": "<="}


def pages(commands: Mapping[str, CommandSpec]) -> dict[str, str]:
    """Returns all pages by file name: bootbridge.1, bootbridge-up.1, proxy-server.1 and so on."""
    names = {name: "-".join(["bootbridge", *command.path]) for name, command in commands.items()}
    found = {f"{names[name]}.1": page(command, commands) for name, command in commands.items()}
    for program, name in PROGRAMS.items():
        text = page(commands[name], commands, program)
        found[f"{program}.1"] = text
    return found


def page(command: CommandSpec, commands: Mapping[str, CommandSpec], program: str = "") -> str:
    """Returns one page; `program` is the name of a command that is a program of its own."""
    typed = program or " ".join(["bootbridge", *command.path])
    title = typed.replace(" ", "-")
    lines = [
        f'.TH "{title.upper()}" 1 "" "bootbridge {__version__}" "Bootbridge"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(command.summary or _first_sentence(command.description))}",
        ".SH SYNOPSIS",
        _synopsis(command, typed),
        ".SH DESCRIPTION",
        *_paragraphs(command.description),
        *_commands(command, commands),
        *_options(command),
        *_exit_codes(command),
        *_examples(command, typed),
        *_see_also(command, commands, title),
    ]
    return "\n".join(lines) + "\n"


def _first_sentence(text: str) -> str:
    return " ".join(text.split(". ")[0].split()).rstrip(".")


def _synopsis(command: CommandSpec, typed: str) -> str:
    words = [f"\\fB{_text(typed)}\\fR"]
    words += ["[\\fIflag\\fR ...]"] if command.flags else []
    words += ["\\fIcommand\\fR ..."] if command.commands else []
    for argument in command.arguments:
        shown = f"\\fI{_text(argument.metavar)}\\fR" + (" ..." if argument.repeats else "")
        words.append(shown if argument.required else f"[{shown}]")
    return " ".join(words)


def _commands(command: CommandSpec, commands: Mapping[str, CommandSpec]) -> Iterator[str]:
    if command.sections:
        yield ".SH COMMANDS"
    for title, names in command.sections:
        if title.lower() != "commands":
            yield f".SS {_text(title)}"
        for name in names:
            yield ".TP"
            yield f"\\fB{_text(name)}\\fR"
            yield _text(commands[" ".join((*command.path, name))].summary)


def _options(command: CommandSpec) -> Iterator[str]:
    if command.flags:
        yield ".SH OPTIONS"
    group = ""
    for flag in command.flags:
        if flag.group != group:
            group = flag.group
            yield f".SS {_text(group[:1].upper() + group[1:]) or 'Other'}"
        yield ".TP"
        yield _flag(flag)
        yield _text(_sentence(flag))


def _flag(flag: FlagSpec) -> str:
    value = f" \\fI{_text(flag.metavar)}\\fR" if flag.metavar else ""
    return ", ".join(f"\\fB{_text(name)}\\fR" for name in flag.names) + value


def _sentence(flag: FlagSpec) -> str:
    choices = ", ".join(flag.choices)
    return f"{flag.help} [{choices}]" if choices and choices not in flag.help else flag.help or "-"


def _exit_codes(command: CommandSpec) -> Iterator[str]:
    if command.exit_codes:
        yield ".SH EXIT STATUS"
    for code, meaning in command.exit_codes:
        yield f".TP\n.B {code}\n{_text(meaning)}"


def _examples(command: CommandSpec, typed: str) -> Iterator[str]:
    examples = textwrap.dedent(command.examples).strip("\n")
    if not examples:
        return
    own = " ".join(["bootbridge", *command.path])
    yield ".SH EXAMPLES"
    yield ".nf"
    yield from (_text(line) or ".sp" for line in examples.replace(own, typed).splitlines())
    yield ".fi"


def _see_also(command: CommandSpec, commands: Mapping[str, CommandSpec], title: str) -> Iterator[str]:
    parent = command.path[:-1]
    siblings = commands[" ".join(parent)].commands if command.path else ()
    related = ["-".join(["bootbridge", *parent]) if command.path else ""]
    related += ["-".join(["bootbridge", *command.path, name]) for name in command.commands]
    related += ["-".join(["bootbridge", *parent, name]) for name in siblings] if parent else []
    shown = [f"\\fB{_text(name)}\\fR(1)" for name in related if name and name != title]
    if shown:
        yield ".SH SEE ALSO"
        yield ",\n".join(shown)


def _paragraphs(text: str) -> Iterator[str]:
    """Prose is filled by the reader's program; indented lines keep their layout."""
    for number, block in enumerate(re.split(r"\n\s*\n", text.strip("\n"))):
        if number:
            yield ".PP"
        lines = block.splitlines()
        at = next((place for place, line in enumerate(lines) if line.startswith("  ")), len(lines))
        yield from map(_text, lines[:at])
        if lines[at:]:
            yield ".nf" if at == 0 else ".PP\n.nf"
            yield from map(_text, lines[at:])
            yield ".fi"


def _text(text: str) -> str:
    """Escapes what roff would interpret; flags keep their ASCII hyphens, so that they can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    escaped = "".join(_CHARACTERS.get(c, c) for c in escaped)
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
