"""``bootbridge kasconfig``: print the kube-apiserver configuration that results from overrides."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bootbridge.bootstrap.render import kasconfig
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import print_output, result_terminal
from bootbridge.cli.parser import add_json_flag
from bootbridge.common.files import read_file
from bootbridge.common.terminal.terminal import Styled, Terminal
from bootbridge.common.yaml_text import to_yaml

_DESCRIPTION = """\
Merges overrides into a KubeAPIServerConfig, in the same way as cluster-kube-apiserver-operator with
--config-override-files. Maps are merged key by key; everything else, lists included, is replaced. A later
override has precedence.

Prints the merged file, the kube-apiserver's flags (--flags), or what the overrides change (--diff).
Nothing is written."""

_EXAMPLES = """\
# What the tunnel's override changes
{program} kube-apiserver-config.yaml kube-apiserver-config-override.yaml --diff
# The resulting command line
{program} kube-apiserver-config.yaml override.yaml --flags | grep egress"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", metavar="BASE", help="the rendered KubeAPIServerConfig, YAML or JSON")
    # With a default argparse does not count it as missing beside BASE.
    parser.add_argument("overrides", metavar="OVERRIDE", nargs="*", default=[], help="applied in order")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--flags", action="store_true", help="print the kube-apiserver's flags, one per line")
    what.add_argument("--diff", action="store_true", help="print what the overrides change")
    add_json_flag(parser)


def _run(flags: argparse.Namespace) -> int:
    base, *overrides = (_config_file(path) for path in [flags.base, *flags.overrides])
    merged = kasconfig.merge(base, *overrides)
    if flags.flags:
        _show_list(kasconfig.flags(merged, flags.base), as_json=flags.json)
    elif flags.diff:
        _show_changes(kasconfig.changes(kasconfig.parse(base), merged), as_json=flags.json)
    elif flags.json:
        print_output(_json(merged))
    else:
        print_output(to_yaml(merged, sort_keys=True).decode())
    return ExitCode.OK


def _config_file(path: str) -> kasconfig.ConfigFile:
    return kasconfig.ConfigFile(path, read_file(path, path))


def _show_list(lines: list[str], *, as_json: bool) -> None:
    print_output(_json(lines) if as_json else "".join(f"{line}\n" for line in lines))


def _show_changes(changes: list[kasconfig.ConfigChange], *, as_json: bool) -> None:
    if as_json:
        print_output(_json([vars(change) for change in changes]))
    elif not changes:
        print_output("no changes\n")
    else:
        terminal = result_terminal()
        for change in changes:
            _show_change(change, terminal)


def _show_change(change: kasconfig.ConfigChange, terminal: Terminal) -> None:
    """Prints `- before` and `+ after` of a field."""
    if change.kind != "added":
        terminal.line(Styled(f"- {change.path}: {json.dumps(change.before)}", "bad"))
    if change.kind != "removed":
        terminal.line(Styled(f"+ {change.path}: {json.dumps(change.after)}", "good"))


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=isinstance(value, dict)) + "\n"


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={ExitCode.OK: "printed", ExitCode.ERROR: "a file cannot be read or merged"},
)
