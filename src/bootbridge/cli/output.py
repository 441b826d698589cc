"""Writes results to stdout and messages to stderr."""

from __future__ import annotations

import sys


def print_output(text: str) -> int:
    """Writes a result; a reader that closes the pipe early, such as ``head``, is not an error. Returns 0."""
    if sys.stdout is None:
        return 0  # an earlier write found the pipe closed
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at exit, which would fail again.
        sys.stdout = None
    return 0


def print_error(*lines: str) -> None:
    """Writes messages, one line each; control characters are escaped."""
    for line in lines:
        print(escape_control_characters(line), file=sys.stderr)


def escape_control_characters(text: str) -> str:
    """Returns one line that cannot control a terminal: peers and files choose parts of our messages."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
