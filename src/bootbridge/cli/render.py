"""``bootbridge render``: write all manifests and scripts, for review and editing before the boot."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bootbridge.bootstrap.plan.plan import Flavour, Plan
from bootbridge.bootstrap.render import node_files, output_directory
from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import print_error, print_output
from bootbridge.cli.parser import add_json_flag
from bootbridge.cli.plan_flags import add_plan_flags, plan_from
from bootbridge.common.files import Asset, read_file
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
    print_output(_as_json(plan, results) if flags.json else _as_table(plan, results))
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


def _as_table(plan: Plan, results: list[output_directory.FileResult]) -> str:
    rows = [("PATH", "MODE", "STATE", "FOR")]
    for result in results:
        purpose = node_files.purpose(plan, result.path)
        rows.append((result.path, f"{result.mode:04o}", result.state, purpose))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


COMMAND = Command(
    _run,
    _DESCRIPTION,
    _EXAMPLES,
    _add_flags,
    exit_codes={ExitCode.OK: "written", ExitCode.ERROR: "not written"},
)
