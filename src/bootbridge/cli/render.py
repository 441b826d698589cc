"""``bootbridge render``: write all manifests and scripts, for review and editing before the boot."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bootbridge.bootstrap.plan.plan import Flavour
from bootbridge.bootstrap.render import node_files, output_directory, permanent, permanent_readme
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import print_error, print_output, result_terminal
from bootbridge.cli.parser import add_json_flag
from bootbridge.cli.permanent_flags import add_permanent_flags, permanent_plan_from, refuse_permanent_flags
from bootbridge.cli.plan_flags import add_plan_flags, plan_from
from bootbridge.common.files import Asset, Tree, read_file
from bootbridge.common.terminal.figures import counted
from bootbridge.common.terminal.terminal import Mark, Terminal
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Writes all files of the tunnel to a directory, each at its path on the bootstrap node:
  - manifests, with placeholders such as @BOOTBRIDGE_IMAGE@ for values that only the node knows
  - egress selector, override of the kube-apiserver's configuration, script, plan
  - the platform's firewall rules, and for kubeadm a patch of the ClusterConfiguration
They contain no keys: the node issues the certificates.

With --permanent it writes servers that stay: a static pod for each control plane, the egress selector, roles,
values of the chart for the agents, and a README with the steps.

A second run to the same directory updates it and keeps files that you have edited; --force overwrites them.
The directory is replaced as a whole or not at all."""

_EXAMPLES = """\
# For the cluster of an install-config
{program} --output tunnel --install-config install-config.yaml --infra-id demo-7xk2p
# For kubeadm, with our image
{program} --output tunnel --flavour kubeadm --image registry.example/bootbridge:1
# Permanent servers on two control planes
{program} --permanent --output servers --image registry.example/bootbridge:1 \\
    --server-host 192.0.2.5 --server-host 192.0.2.6"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        metavar="DIR",
        required=True,
        help="new or empty directory, or the one of an earlier render",
    )
    parser.add_argument("--force", action="store_true", help="overwrite edited files, too")
    add_json_flag(parser)
    parser.add_argument(
        "--kubeadm-config",
        metavar="FILE",
        help="add the tunnel to this kubeadm configuration, and write it as kubeadm.yaml (0600)",
    )
    add_permanent_flags(parser)
    add_plan_flags(parser)


@dataclass(frozen=True)
class _Rendering:
    """What one of the two kinds of plan becomes."""

    tree: Tree
    purpose: Callable[[str], str]
    use: tuple[str, str]  # the command that uses the files, and what it does


def _run(flags: argparse.Namespace) -> int:
    rendering = _permanent(flags) if flags.permanent else _bootstrap(flags)
    results = output_directory.write(rendering.tree, Path(flags.output), force=flags.force)
    if flags.json:
        print_output(_as_json(rendering, results))
    else:
        _show(rendering, results, flags, result_terminal())
    for result in results:
        if result.state == output_directory.KEPT:
            print_error(f"{flags.program}: {result.path} was edited, not overwritten (use --force)")
    return ExitCode.OK


def _bootstrap(flags: argparse.Namespace) -> _Rendering:
    refuse_permanent_flags(flags)
    plan = plan_from(flags)
    if flags.kubeadm_config and plan.flavour is not Flavour.KUBEADM:
        raise OperatorError("only supported with --flavour kubeadm", subject="--kubeadm-config")
    directory = shlex.quote(flags.output)
    if plan.flavour is Flavour.OPENSHIFT:
        use = (f"bootbridge inject bootstrap.ign --assets {directory}", "add them to an ignition file")
    else:
        record = f"{directory}{plan.paths.plan_record}"
        use = (f"bootbridge up --plan {record}", "install with this plan, on the node")
    tree = node_files.output_files(plan, _private(flags.kubeadm_config, "--kubeadm-config"))
    return _Rendering(tree, partial(node_files.purpose, plan), use)


def _permanent(flags: argparse.Namespace) -> _Rendering:
    plan = permanent_plan_from(flags)
    tree = permanent.output_files(
        plan,
        _private(flags.kubeadm_config, "--kubeadm-config"),
        _private(flags.apiserver_manifest, "--apiserver-manifest"),
    )
    use = (f"less {shlex.quote(f'{flags.output}/{permanent_readme.NAME}')}", "what to run, in which order")
    return _Rendering(tree, partial(permanent.purpose, plan), use)


def _private(path: str | None, flag: str) -> Asset | None:
    """Returns a user's file with mode 0600, because it may contain tokens."""
    return Asset(read_file(path, flag), 0o600) if path else None


def _as_json(rendering: _Rendering, results: list[output_directory.FileResult]) -> str:
    rows = [
        {
            "path": result.path,
            "mode": f"{result.mode:04o}",
            "state": result.state,
            "purpose": rendering.purpose(result.path),
        }
        for result in results
    ]
    return json.dumps(rows, indent=2) + "\n"


def _show(
    rendering: _Rendering,
    results: list[output_directory.FileResult],
    flags: argparse.Namespace,
    terminal: Terminal,
) -> None:
    rows = [(each.path, f"{each.mode:04o}", each.state, rendering.purpose(each.path)) for each in results]
    terminal.table(rows, head=("PATH", "MODE", "STATE", "FOR"))
    kept = sum(each.state == output_directory.KEPT for each in results)
    sentence = f"{counted(len(results), 'file')} in {flags.output}" + (
        f", {kept} edited and kept." if kept else "."
    )
    check = (f"bootbridge check {shlex.quote(flags.output)}", "check them, also after an edit")
    terminal.summary(Mark.WARNING if kept else Mark.GOOD, sentence, next_steps=[check, rendering.use])


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={ExitCode.OK: "written", ExitCode.ERROR: "not written"},
)
