"""What the bootstrap verbs share: argparse with our manners, and what the exit codes mean.

0: done, or nothing wrong found. 1: it could not be done; one line on stderr says why and how
to mend it, and nothing is half-written. 2: it ran, and found something wrong (`check`, `doctor`)
or left something behind (`down`). 130: interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from bootbridge.cli.command import complain, show
from bootbridge.cli.help_page import width
from bootbridge.errors import OperatorError

DONE, FAILED, FOUND, INTERRUPTED = 0, 1, 2, 130


class Parser(argparse.ArgumentParser):
    """Flags of one verb: names are exact, a wrong one is refused in one line."""

    def __init__(self, program: str, description: str, examples: str) -> None:
        super().__init__(
            prog=program,
            description=description,
            epilog=f"Examples:\n{_indented(examples.format(program=program))}",
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=width()),
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise OperatorError(f"{message} (run '{self.prog} --help' for usage)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise SystemExit(status)

    def print_help(self, file: Any = None) -> None:
        show(self.format_help())


def run_verb(program: str, body: Callable[[], int]) -> int:
    """Run a verb's body; the result is the exit code, whatever happens."""
    try:
        return body()
    except OperatorError as error:
        complain(f"{program}: {error}")
        return FAILED
    except KeyboardInterrupt:
        complain(f"{program}: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None
        return FAILED
    except OSError as error:
        # Nobody expected it, but the system itself says what is wrong, and with which file.
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{program}: {where}{error.strerror or str(error) or type(error).__name__}")
        return FAILED
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else FAILED


def words(argv: Sequence[str] | None) -> list[str]:
    return list(sys.argv[1:] if argv is None else argv)


def _indented(text: str) -> str:
    import textwrap

    return textwrap.indent(textwrap.dedent(text).strip("\n"), "  ")
