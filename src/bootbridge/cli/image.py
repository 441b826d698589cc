"""``bootbridge image build``: our server and agent as an OCI archive, made without a registry or a daemon."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from bootbridge import __version__
from bootbridge.cli.command import Command, CommandGroup, ExitCode
from bootbridge.cli.output import print_output, result_terminal
from bootbridge.cli.parser import add_json_flag
from bootbridge.common.files import Asset, write_file
from bootbridge.common.progress import Progress
from bootbridge.common.terminal.figures import duration, size
from bootbridge.common.terminal.terminal import Mark
from bootbridge.image import oci, recipes

_DESCRIPTION = """\
Build the image of proxy-server and proxy-agent from this machine's Python: the interpreter,
what the two programs import, and no shell. The same sources give the same digest."""
EXAMPLES = """\
{program} build --output bootbridge.tar
podman load -i bootbridge.tar && podman push localhost/bootbridge:{version} registry.example/bootbridge
ctr --namespace k8s.io images import bootbridge.tar
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="bootbridge.tar",
        help="the archive (default bootbridge.tar)",
    )
    name = f"localhost/bootbridge:{__version__}"
    parser.add_argument(
        "--name", metavar="REF", default=name, help=f"the image's name and tag (default {name})"
    )
    add_json_flag(parser)


def _build(flags: argparse.Namespace) -> int:
    progress = Progress(sys.stderr)
    progress.begin("packing the Python of this machine")
    image = recipes.tunnel()
    write_file(Path(flags.output), Asset(oci.archive({flags.name: image})))
    progress.cancel()
    document = {
        "file": flags.output,
        "name": flags.name,
        "digest": image.digest,
        "compressedBytes": image.size,
    }
    if flags.json:
        print_output(json.dumps(document, indent=2) + "\n")
    else:
        file = shlex.quote(flags.output)
        result_terminal().summary(
            Mark.GOOD,
            f"{flags.output}: {flags.name}, {size(image.size)} compressed ({duration(progress.seconds)})",
            details=[image.digest],
            apart=False,
            next_steps=[
                (f"podman load -i {file}", "then push it to your registry"),
                (f"ctr --namespace k8s.io images import {file}", "or load it on a node, without a registry"),
            ],
        )
    return ExitCode.OK


_EXAMPLES = EXAMPLES.replace("{version}", __version__)
_BUILD = Command(
    _build,
    _DESCRIPTION,
    _EXAMPLES.replace(" build", ""),
    _add_flags,
    summary="write the image as an OCI archive",
)
COMMAND = CommandGroup(_DESCRIPTION, {"Commands": {"build": _BUILD}}, _EXAMPLES)
