"""The commands that a command of the lab suggests, for the lab that was given."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path


def default_directory() -> str:
    return os.environ.get("BOOTBRIDGE_LAB") or str(Path.home() / ".cache" / "bootbridge" / "lab")


def in_this_lab(flags: argparse.Namespace, steps: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Adds --dir and --bin-dir to the commands, if they were given: the next command needs them too."""
    given = {"--dir": flags.dir if flags.dir != default_directory() else "", "--bin-dir": flags.bin_dir or ""}
    more = "".join(f" {flag} {shlex.quote(value)}" for flag, value in given.items() if value)
    return [(command.replace("bootbridge lab", f"bootbridge lab{more}", 1), why) for command, why in steps]
