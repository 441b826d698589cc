"""``bootbridge render``: write every manifest and script, to be read and changed before anything boots."""

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
Writes all files of the tunnel below a directory, each at the path that it has on the
bootstrap node: manifests (with placeholders like @BOOTBRIDGE_IMAGE@ for what only the node
knows), egress selector, override of the kube-apiserver's configuration, scripts and the
plan; beside them the firewall rules of the platform, and for kubeadm the patch of its
ClusterConfiguration. There are no keys among them: certificates are made on the node.

A second run into the same directory brings it up to date and keeps the files that you have
changed; --force overwrites those too. The directory is replaced as a whole or not at all."""

_EXAMPLES = """\
# For the cluster of an install-config
{program} --output tunnel --install-config install-config.yaml --infra-id demo-7xk2p
# For kubeadm, with our image
{program} --output tunnel --flavour kubeadm --image registry.example/bootbridge:1"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="DIR", required=True, help="new, empty, or of an earlier render")
    parser.add_argument("--force", action="store_true", help="overwrite files that you have changed, too")
    add_json_flag(parser)
    parser.add_argument(
        "--kubeadm-config",
        metavar="FILE",
        help="merge the tunnel into this kubeadm configuration, and write it as kubeadm.yaml (0600)",
    )
    add_plan_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    plan = plan_from(flags)
    tree = node_files.output_files(plan, _kubeadm_config(flags, plan))
    outcomes = output_directory.write(tree, Path(flags.output), force=flags.force)
    print_output(_as_json(plan, outcomes) if flags.json else _as_table(plan, outcomes))
    for outcome in outcomes:
        if outcome.state == output_directory.KEPT:
            print_error(f"{flags.program}: {outcome.path} is kept as you changed it (--force overwrites it)")
    return ExitCode.OK


def _kubeadm_config(flags: argparse.Namespace, plan: Plan) -> Asset | None:
    """Tokens may stand in it, so what is made of it is its owner's alone."""
    if not flags.kubeadm_config:
        return None
    if plan.flavour is not Flavour.KUBEADM:
        raise OperatorError("is for --flavour kubeadm", subject="--kubeadm-config")
    return Asset(read_file(flags.kubeadm_config, "--kubeadm-config"), 0o600)


def _as_json(plan: Plan, outcomes: list[output_directory.FileResult]) -> str:
    rows = [
        {
            "path": outcome.path,
            "mode": f"{outcome.mode:04o}",
            "state": outcome.state,
            "purpose": node_files.purpose(plan, outcome.path),
        }
        for outcome in outcomes
    ]
    return json.dumps(rows, indent=2) + "\n"


def _as_table(plan: Plan, outcomes: list[output_directory.FileResult]) -> str:
    rows = [("PATH", "MODE", "STATE", "FOR")]
    for outcome in outcomes:
        purpose = node_files.purpose(plan, outcome.path)
        rows.append((outcome.path, f"{outcome.mode:04o}", outcome.state, purpose))
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
