"""Renders the help page of a proxy: synopsis, usage, examples, then the flags in groups."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bootbridge.cli.pflags import Flag, FlagSet

_WIDTH_MIN, _WIDTH_MAX = 40, 100
_INDENT = "        "


def width() -> int:
    """Returns the terminal's columns, between 40 and 100."""
    return max(_WIDTH_MIN, min(_WIDTH_MAX, shutil.get_terminal_size((80, 24)).columns))


def render(program: str, synopsis: str, examples: str, flags: FlagSet, columns: int) -> str:
    """Renders the page; ``{program}`` in the examples becomes the program's name."""
    parts = [
        _wrap(synopsis, columns),
        f"Usage:\n  {program} [flags]",
        "Examples:\n" + textwrap.indent(textwrap.dedent(examples).strip(), "  ").format(program=program),
    ]
    for title, group in flags.groups:
        entries = [_entry(flag, flags, columns) for flag in group if not flag.deprecated]
        if entries:
            parts.append(f"{title}:\n" + "\n".join(entries))
    parts.append("Other:\n  -h, --help\n        Show this page.\n  --version\n        Show the version.")
    return "\n\n".join(parts) + "\n"


def reflow(text: str, columns: int) -> str:
    """Fills paragraphs to a width. An indented line is an entry of its own, which wraps below its text."""
    return "\n".join(_wrap_entry(line, columns) for line in _joined(text.splitlines()))


# The start of an entry: `  name   text`, `  1. text`, `  - text`, or blanks only.
_LEAD = re.compile(r" +((?:\S+ )*\S+ {2,}|\d+\. |- )?")


def _joined(lines: Sequence[str]) -> list[str]:
    """Joins each line with those that continue it: not indented, or indented as its text is."""
    joined: list[str] = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        above = joined[-1] if joined else ""
        match = _LEAD.match(above)
        continued = len(match.group(0)) if match else 0
        if (
            line.strip()
            and above.strip()
            and indent == continued
            and (not indent or (match and match.group(1)))
        ):
            joined[-1] = f"{above} {line.strip()}"
        else:
            joined.append(line)
    return joined


def _wrap_entry(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    match = _LEAD.match(line)
    lead = match.group(0) if match else ""
    return textwrap.fill(
        line[len(lead) :],
        columns,
        initial_indent=lead,
        subsequent_indent=" " * (len(lead) if len(lead) <= columns // 2 else 8),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _entry(flag: Flag, flags: FlagSet, columns: int) -> str:
    word = flags.kind(flag).word
    default = shown_default(flag, flags)
    head = f"  {flag.spelling}{' ' + word if word else ''}"
    shown = f"(default {default})" if default else ""
    # Beside the name if there is room, so that the names stand out; else below it.
    beside = shown and len(head) + 2 + len(shown) <= columns
    lines = [f"{head}  {shown}" if beside else head, _wrap(flag.help, columns, _INDENT)]
    return "\n".join(lines if beside or not shown else [*lines, _wrap(shown, columns, _INDENT)])


def _wrap(text: str, columns: int, indent: str = "") -> str:
    # Flag names are not broken, because users copy them.
    return textwrap.fill(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def shown_default(flag: Flag, flags: FlagSet) -> str:
    """Returns the default as the help shows it; empty if there is nothing to show."""
    if flag.default_text:
        return flag.default_text
    default = flags.default(flag)
    return flags.kind(flag).show(default) if default not in ("", (), False, 0, None) else ""
