"""The flags of the two proxies as their help pages show them: Konnectivity's Go programs, and ours."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

from tests.support.not_run import not_run
from tests.support.process_program import OURS, PEERS

SECONDS = 30
# How the originals name the kinds of values that klog brings, in our words.
KLOG_KINDS = {"Level": "level", "moduleSpec": "string", "traceLocation": "string"}
_GO_FLAG = re.compile(r"^ +(?:-\w, )?--([a-z][a-z0-9-]*)(?: (\S+))? {2,}(.*)$", re.MULTILINE)
_OUR_FLAG = re.compile(r"^ {2}(?:-\w, )?--([a-z][a-z0-9-]*)(?: (\S+))?(?: {2}\(default (.*)\))?$")
_HELP_INDENT = " " * 8


@dataclass(frozen=True)
class Shown:
    """One flag as a help page shows it."""

    name: str
    kind: str
    default: str
    help: str = ""


def original(program: str) -> str:
    """Returns the path of a Go program."""
    path = PEERS / program
    if not path.exists():
        not_run(f"{path} is missing: build it with 'make peers'")
    return str(path)


def flags_of_the_original(program: str) -> dict[str, Shown]:
    flags = {}
    page = _page(original(program))
    for name, kind, text in _GO_FLAG.findall(page):
        default = re.search(r"\(default ([^)]*)\)$", text)
        flags[name] = Shown(name, kind, default[1].strip('"') if default else "", text)
    assert len(flags) > 40, page
    return flags


def flags_of_ours(program: str) -> dict[str, Shown]:
    flags: dict[str, Shown] = {}
    name = ""
    page = _page(str(OURS / program))
    for line in page.splitlines():
        if found := _OUR_FLAG.match(line):
            name = found[1]
            flags[name] = Shown(name, found[2] or "", (found[3] or "").strip('"[]'))
        elif name and line.startswith(_HELP_INDENT):
            flag = flags[name]
            flags[name] = Shown(name, flag.kind, flag.default, f"{flag.help} {line.strip()}".strip())
        else:
            name = ""
    assert len(flags) > 40, page
    return flags


def _page(program: str) -> str:
    # Our pages are as wide as the terminal.
    environment = {**os.environ, "COLUMNS": "100"}
    argv = [program, "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=SECONDS, env=environment)
    return done.stdout
