"""The two proxy programs: flags in Go's style become options, which are validated and run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bootbridge.cli.output import print_error, print_output
from bootbridge.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from bootbridge.cli.pflags import FlagSet


class ProxyProgram:
    """Declares a program; `main` parses, validates and runs."""

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
        self.flags = flags
        self._options = options
        self._validate = validate
        self._warnings = warnings
        self._run = run
        self.synopsis = synopsis
        self.examples = examples

    def main(self, argv: Sequence[str] | None, program: str) -> int:
        """Runs the program; returns the exit code."""
        try:
            parsed = self.flags.parse(sys.argv[1:] if argv is None else argv)
            if parsed.requested_page:
                return self._answer(parsed.requested_page, program)
            options = self._options(**parsed.fields)
            print_error(*parsed.deprecations)
            # The original drops stray arguments silently, "--some-bool false" among them.
            print_error(*(f"{program}: warning: argument {word!r} is ignored" for word in parsed.positionals))
            self._validate(options)
        except OperatorError as error:
            usage = "" if error.hint else f" (run '{program} --help' for usage)"
            print_error(f"{program}: {error}{usage}")
            return 1
        print_error(*(f"{program}: warning: {text}" for text in self._warnings(options)))
        try:
            return self._run(options)
        except OperatorError as error:
            print_error(f"{program}: {error}")
            return 1

    def _answer(self, requested_page: str, program: str) -> int:
        if requested_page == "version":
            from bootbridge import installation

            return print_output(installation.text(f"{program} (bootbridge)"))
        from bootbridge.cli import help_page

        columns = help_page.width()
        return print_output(help_page.render(program, self.synopsis, self.examples, self.flags, columns))
