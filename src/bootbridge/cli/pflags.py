"""Parses flags as Go's pflag does, so that existing manifests work unchanged.

``--flag=value`` and ``--flag value``; a bool without a value never consumes the next word; repeated lists
are joined; ``--`` ends the flags; names are exact. A ``Flag`` fills a field of a frozen dataclass, whose
default determines the flag's type.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING

from bootbridge.cli import values
from bootbridge.errors import OperatorError
from bootbridge.options import format_duration, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any


@dataclass(frozen=True)
class FlagType:
    """The type of a flag: its name in --help, its parser, and how a default is shown."""

    word: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str
    bare: str | None = None  # the value of the flag without a value
    repeats: bool = False
    fix: str = ""


STRING = FlagType("string", str, quote)
BOOL = FlagType("", values.parse_bool, values.show_bool, bare="true", fix="write =true or =false")
INT = FlagType("int", values.parse_int, fix="write a whole number")
FLOAT = FlagType("float32", values.parse_float, lambda value: f"{value:g}", fix="write a number")
DURATION = FlagType("duration", values.parse_duration, format_duration, fix="write 500ms, 10s or 1h30m")
LIST = FlagType("strings", values.parse_list, values.show_list, repeats=True, fix="separate by commas")

_KIND_OF_DEFAULT = {str: STRING, bool: BOOL, int: INT, float: DURATION, tuple: LIST}


@dataclass(frozen=True)
class Flag:
    """One flag. ``into`` names another field to fill; ``deprecated`` is the advice for users of the flag."""

    name: str
    help: str
    kind: FlagType | None = None
    shorthand: str = ""
    into: str = ""
    deprecated: str = ""
    default_text: str = ""
    choices: tuple[str, ...] = ()  # for completion; the options validate them

    @property
    def field_name(self) -> str:
        return self.into or self.name.replace("-", "_")

    @property
    def spelling(self) -> str:
        return f"-{self.shorthand}, --{self.name}" if self.shorthand else f"--{self.name}"


@dataclass
class Parsed:
    """A parsed command line: fields that were set, positional arguments, deprecation warnings."""

    fields: dict[str, Any] = field(default_factory=dict)
    positionals: list[str] = field(default_factory=list)
    deprecations: list[str] = field(default_factory=list)
    requested_page: str = ""  # "help", "version" or nothing


class FlagSet:
    """The flags of one command, in titled groups, and the dataclass that they fill."""

    def __init__(self, options: type, groups: Sequence[tuple[str, Sequence[Flag]]]) -> None:
        self._fields = options.__dataclass_fields__  # type: ignore[attr-defined]
        self.groups = groups
        self._by_name = {flag.name: flag for _, flags in groups for flag in flags}
        self._by_letter = {flag.shorthand: flag for flag in self._by_name.values() if flag.shorthand}

    def __iter__(self) -> Iterator[Flag]:
        return iter(self._by_name.values())

    def default(self, flag: Flag) -> Any:
        """Returns the default of a flag; None if it is computed at start."""
        value = self._fields[flag.field_name].default
        return None if value is MISSING else value

    def kind(self, flag: Flag) -> FlagType:
        if flag.kind is not None:
            return flag.kind
        default = self.default(flag)
        return STRING if default is None else _KIND_OF_DEFAULT[type(default)]

    def parse(self, argv: Sequence[str]) -> Parsed:
        """Parses a command line up to the first --help or --version."""
        parsed = Parsed()
        words = list(reversed(argv))
        while words and not parsed.requested_page:
            word = words.pop()
            if word == "--":
                parsed.positionals.extend(reversed(words))
                break
            if word.startswith("--"):
                self._long(word, words, parsed)
            elif word.startswith("-") and word != "-":
                self._short(word, words, parsed)
            else:
                parsed.positionals.append(word)
        return parsed

    def _long(self, word: str, words: list[str], parsed: Parsed) -> None:
        name, equals, value = word[2:].partition("=")
        if not name or name[0] == "-":
            raise OperatorError(f"bad flag syntax: {word}", hint="write --flag=value")
        flag = self._by_name.get(name)
        if flag is None:
            if name in ("help", "version"):
                parsed.requested_page = name
                return
            raise OperatorError(f"unknown flag: --{name}", hint=self._suggestion(name))
        if not equals:
            value = self._value_beside(flag, words, f"--{name}")
        self._set(flag, value, parsed)

    def _short(self, word: str, words: list[str], parsed: Parsed) -> None:
        letter, rest = word[1], word[2:]
        if letter == "h":
            parsed.requested_page = "help"
            return
        flag = self._by_letter.get(letter)
        if flag is None:
            hint = f"long flags take two dashes: -{word}" if rest else ""
            raise OperatorError(f"unknown shorthand flag: '{letter}' in {word}", hint=hint)
        if not rest:
            rest = self._value_beside(flag, words, f"'{letter}' in {word}")
        elif len(rest) > 1 and rest[0] == "=":
            rest = rest[1:]
        self._set(flag, rest, parsed)

    def _value_beside(self, flag: Flag, words: list[str], shown: str) -> str:
        bare = self.kind(flag).bare
        if bare is not None:
            return bare
        if not words:
            raise OperatorError(f"flag needs an argument: {shown}", hint=f"write --{flag.name}=<value>")
        return words.pop()

    def _set(self, flag: Flag, text: str, parsed: Parsed) -> None:
        kind = self.kind(flag)
        try:
            value = kind.parse(text)
        except ValueError as error:
            message = f"invalid argument {quote(text)} for {quote(flag.spelling)} flag: {error}"
            raise OperatorError(message, hint=kind.fix) from None
        if kind.repeats:
            value = parsed.fields.get(flag.field_name, ()) + value
        parsed.fields[flag.field_name] = value
        if flag.deprecated:
            parsed.deprecations.append(f"Flag --{flag.name} has been deprecated, {flag.deprecated}")

    def _suggestion(self, name: str) -> str:
        dashed = name.replace("_", "-")
        if dashed in self._by_name:
            return f"did you mean --{dashed}?"
        import difflib

        near = difflib.get_close_matches(dashed, self._by_name, n=1, cutoff=0.75)
        return f"did you mean --{near[0]}?" if near else ""
