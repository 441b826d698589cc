"""Writes results to stdout and messages to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bootbridge.common.terminal import transient
from bootbridge.common.terminal.characters import escape_control_characters, for_output

if TYPE_CHECKING:
    from bootbridge.common.terminal.terminal import Terminal

__all__ = [
    "escape_control_characters",
    "hint_terminal",
    "print_error",
    "print_output",
    "print_problem",
    "print_warnings",
    "result_terminal",
]


def print_output(text: str) -> int:
    """Writes a result; a reader that closes the pipe early, such as ``head``, is not an error. Returns 0."""
    if sys.stdout is None:
        return 0  # an earlier write found the pipe closed
    transient.erase()
    try:
        sys.stdout.write(for_output(text, sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at exit, which would fail again.
        sys.stdout = None
    return 0


def print_error(*lines: str) -> None:
    """Writes messages, one line each; control characters are escaped."""
    transient.erase()
    for line in lines:
        print(for_output(escape_control_characters(line), sys.stderr), file=sys.stderr)


def print_problem(*lines: str) -> None:
    """Writes errors to stderr: one plain line each, or on a terminal marked and wrapped."""
    transient.end()
    if not sys.stderr.isatty():
        print_error(*lines)
        return
    from bootbridge.common.terminal.terminal import Mark, Terminal

    terminal = Terminal(sys.stderr)
    for line in lines:
        terminal.record([Mark.BAD, line])


def print_warnings(program: str, *texts: str) -> None:
    """Writes warnings of a verb to stderr: one plain line each, or on a terminal marked and wrapped."""
    if not texts or not sys.stderr.isatty():
        print_error(*(f"{program}: warning: {text}" for text in texts))
        return
    from bootbridge.common.terminal.terminal import Mark, Terminal

    terminal = Terminal(sys.stderr)
    for text in texts:
        terminal.record([Mark.WARNING, f"{program}: warning: {text}"])


def result_terminal() -> Terminal:
    """Returns stdout for the records and the summary of a verb; a closed pipe is not an error."""
    from bootbridge.common.terminal.terminal import Terminal

    def close() -> None:
        sys.stdout = None

    return Terminal(sys.stdout, on_closed=close)


def hint_terminal() -> Terminal:
    """Returns stderr, for the next steps of a verb whose stdout is data, if both are a terminal."""
    from bootbridge.common.terminal.terminal import Terminal

    watched = sys.stdout is not None and sys.stdout.isatty() and sys.stderr.isatty()
    return Terminal(sys.stderr if watched else None)
