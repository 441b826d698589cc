"""What the commands share: read flags, build the options, check them, run; one line when it fails."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bootbridge import __version__
from bootbridge.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from bootbridge.cli.pflags import FlagSet, Parsed


class Command:
    """A program made of flags: how they become options, what checks those, what runs on them."""

    def __init__(
        self,
        *,
        flags: FlagSet,
        options: type,
        validate: Callable[[Any], None],
        warnings: Callable[[Any], Sequence[str]],
        run: Callable[[Any], int],
        synopsis: str,
        examples: str,
    ) -> None:
        self._flags = flags
        self._options = options
        self._validate = validate
        self._warnings = warnings
        self._run = run
        self._synopsis = synopsis
        self._examples = examples

    def main(self, argv: Sequence[str] | None, program: str) -> int:
        """Run the program; the result is the exit code."""
        try:
            parsed = self._flags.parse(sys.argv[1:] if argv is None else argv)
            if parsed.asks_for:
                return self._answer(parsed.asks_for, program)
            options = self._options(**parsed.fields)
            tell_about_flags(program, parsed)
            self._validate(options)
        except OperatorError as error:
            read_on = "" if error.hint else f" (run '{program} --help' for usage)"
            complain(f"{program}: {error}{read_on}")
            return 1
        complain(*(f"{program}: warning: {text}" for text in self._warnings(options)))
        try:
            return self._run(options)
        except OperatorError as error:
            complain(f"{program}: {error}")
            return 1

    def _answer(self, asks_for: str, program: str) -> int:
        if asks_for == "version":
            return show(f"{program} (bootbridge) {__version__}\n")
        from bootbridge.cli import help_page

        columns = help_page.width()
        return show(help_page.render(program, self._synopsis, self._examples, self._flags, columns))


def tell_about_flags(program: str, parsed: Parsed) -> None:
    """Name deprecated flags and stray words."""
    complain(*parsed.deprecations)
    # The original drops stray words silently, "--some-bool false" among them.
    complain(*(f"{program}: warning: argument {word!r} is ignored" for word in parsed.strays))


def show(text: str) -> int:
    """Print what was asked for; a reader who leaves early, such as ``head``, is no failure."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter would flush once more at exit, and complain.
        sys.stdout = None
    return 0


def complain(*lines: str) -> None:
    """Tell the operator, one line each whatever was on the command line."""
    for line in lines:
        print("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line), file=sys.stderr)
