"""Renders the help page of a proxy: synopsis, usage, examples, then the flags in groups."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def _entry(flag: Flag, flags: FlagSet, columns: int) -> str:
    word = flags.kind(flag).word
    default = shown_default(flag, flags)
    head = f"  {flag.spelling}{' ' + word if word else ''}{f'  (default {default})' if default else ''}"
    return f"{head}\n{_wrap(flag.help, columns, _INDENT)}"


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
