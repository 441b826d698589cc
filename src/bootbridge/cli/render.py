"""``bootbridge render``: write all manifests and scripts, for review and editing before the boot."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from bootbridge.bootstrap.plan.plan import Flavour, Plan
from bootbridge.bootstrap.render import node_files, output_directory
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import print_error, print_output, result_terminal
from bootbridge.cli.parser import add_json_flag
from bootbridge.cli.plan_flags import add_plan_flags, plan_from
from bootbridge.common.files import Asset, read_file
from bootbridge.common.terminal.figures import counted
from bootbridge.common.terminal.terminal import Mark, Terminal
from bootbridge.errors import OperatorError

_DESCRIPTION = """\
Writes all files of the tunnel to a directory, each at its path on the bootstrap node:
  - manifests, with placeholders such as @BOOTBRIDGE_IMAGE@ for values that only the node knows
  - egress selector, override of the kube-apiserver's configuration, script, plan
  - the platform's firewall rules, and for kubeadm a patch of the ClusterConfiguration
They contain no keys: the node issues the certificates.

A second run to the same directory updates it and keeps files that you have edited; --force overwrites them.
The directory is replaced as a whole or not at all."""

_EXAMPLES = """\
# For the cluster of an install-config
{program} --output tunnel --install-config install-config.yaml --infra-id demo-7xk2p
# For kubeadm, with our image
{program} --output tunnel --flavour kubeadm --image registry.example/bootbridge:1"""


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
    add_plan_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    plan = plan_from(flags)
    tree = node_files.output_files(plan, _kubeadm_config(flags, plan))
    results = output_directory.write(tree, Path(flags.output), force=flags.force)
    if flags.json:
        print_output(_as_json(plan, results))
    else:
        _show(plan, results, flags, result_terminal())
    for result in results:
        if result.state == output_directory.KEPT:
            print_error(f"{flags.program}: {result.path} was edited, not overwritten (use --force)")
    return ExitCode.OK


def _kubeadm_config(flags: argparse.Namespace, plan: Plan) -> Asset | None:
    """Returns the file with mode 0600, because it may contain tokens."""
    if not flags.kubeadm_config:
        return None
    if plan.flavour is not Flavour.KUBEADM:
        raise OperatorError("only supported with --flavour kubeadm", subject="--kubeadm-config")
    return Asset(read_file(flags.kubeadm_config, "--kubeadm-config"), 0o600)


def _as_json(plan: Plan, results: list[output_directory.FileResult]) -> str:
    rows = [
        {
            "path": result.path,
            "mode": f"{result.mode:04o}",
            "state": result.state,
            "purpose": node_files.purpose(plan, result.path),
        }
        for result in results
    ]
    return json.dumps(rows, indent=2) + "\n"


def _show(
    plan: Plan, results: list[output_directory.FileResult], flags: argparse.Namespace, terminal: Terminal
) -> None:
    rows = [
        (each.path, f"{each.mode:04o}", each.state, node_files.purpose(plan, each.path)) for each in results
    ]
    terminal.table(rows, head=("PATH", "MODE", "STATE", "FOR"))
    kept = sum(each.state == output_directory.KEPT for each in results)
    sentence = f"{counted(len(results), 'file')} in {flags.output}" + (
        f", {kept} edited and kept." if kept else "."
    )
    directory = shlex.quote(flags.output)
    if plan.flavour is Flavour.OPENSHIFT:
        use = (f"bootbridge inject bootstrap.ign --assets {directory}", "add them to an ignition file")
    else:
        use = (
            f"bootbridge up --plan {directory}{plan.paths.plan_record}",
            "install with this plan, on the node",
        )
    check = (f"bootbridge check {directory}", "check them, also after an edit")
    terminal.summary(Mark.WARNING if kept else Mark.GOOD, sentence, next_steps=[check, use])


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={ExitCode.OK: "written", ExitCode.ERROR: "not written"},
)
