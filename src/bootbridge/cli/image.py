"""``bootbridge image build``: our programs as an OCI archive, made without a registry or a daemon."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from bootbridge import __version__
from bootbridge.cli.command import Command, CommandGroup, ExitCode
from bootbridge.cli.output import print_output, print_warnings, result_terminal
from bootbridge.cli.parser import add_json_flag
from bootbridge.common.files import Asset, write_file
from bootbridge.common.progress import Progress
from bootbridge.common.terminal.figures import duration, size
from bootbridge.common.terminal.terminal import Mark
from bootbridge.errors import OperatorError
from bootbridge.image import bill_of_materials, compiled_package, oci, recipes, reference
from bootbridge.image.oci import OciImage

_DESCRIPTION = """\
Build a container image from this machine's Python: the interpreter, what the programs import,
and no shell. The same sources give the same digest."""
_BUILD_DESCRIPTION = f"""\
{_DESCRIPTION}

  tunnel  proxy-server and proxy-agent, at the paths of Konnectivity's and OpenShift's images
  node    the join service, and its tpm-helper: the image that cluster.yaml names as joinServiceImage

The modules in the image are compiled. An installation by pip is compiled if a C compiler was there;
a source tree is compiled now, in one to three minutes. Otherwise a warning says why the modules are
plain Python: they do the same, with fewer connections and requests per second."""
EXAMPLES = """\
{program} build --output bootbridge.tar
{program} build node --name registry.example/bootbridge-node:{version}
{program} build --sbom bootbridge.cdx.json
podman load -i bootbridge.tar && podman push localhost/bootbridge:{version} registry.example/bootbridge
ctr --namespace k8s.io images import bootbridge.tar
"""
_RECIPES: dict[str, tuple[str, Callable[[Path], OciImage]]] = {
    "tunnel": ("bootbridge", recipes.tunnel),
    "node": ("bootbridge-node", recipes.node),
}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "image",
        metavar="IMAGE",
        nargs="?",
        choices=list(_RECIPES),
        default="tunnel",
        help="tunnel (default) or node",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the archive (default bootbridge.tar or bootbridge-node.tar)",
    )
    parser.add_argument(
        "--name",
        metavar="REF",
        help=f"the image's name and tag (default localhost/bootbridge:{__version__}, or bootbridge-node)",
    )
    parser.add_argument("--plain", action="store_true", help="do not compile; for example to read tracebacks")
    parser.add_argument(
        "--sbom", metavar="FILE", help="also write what the image contains, as CycloneDX JSON"
    )
    add_json_flag(parser)


def _build(flags: argparse.Namespace) -> int:
    stem, recipe = _RECIPES[flags.image]
    output = flags.output or f"{stem}.tar"
    name = f"localhost/{stem}:{__version__}" if flags.name is None else flags.name
    # Before minutes of work.
    if problem := reference.problem_of(name):
        raise OperatorError(f"invalid image reference {name!r}: {problem}", subject="--name")
    for file in filter(None, (output, flags.sbom)):
        if not Path(file).parent.is_dir():
            raise OperatorError("directory not found", subject=file, hint="create it, or correct the path")
    progress = Progress(sys.stderr)
    image, plain_reason = _image(recipe, progress, plain=flags.plain)
    write_file(Path(output), Asset(oci.archive({name: image})))
    if flags.sbom:
        text = json.dumps(bill_of_materials.image_document(image, name), indent=2)
        write_file(Path(flags.sbom), Asset(f"{text}\n".encode()))
    progress.cancel()
    if plain_reason and not flags.plain:
        print_warnings(flags.program, f"the modules in the image are not compiled: {plain_reason}")
    document = {
        "file": output,
        "name": name,
        "digest": image.digest,
        "compressedBytes": image.size,
        "compiled": not plain_reason,
    }
    if flags.json:
        print_output(json.dumps(document, indent=2) + "\n")
    else:
        file = shlex.quote(output)
        kind = "plain" if plain_reason else "compiled"
        result_terminal().summary(
            Mark.GOOD,
            f"{output}: {name}, {kind}, {size(image.size)} compressed ({duration(progress.seconds)})",
            details=[image.digest],
            apart=False,
            next_steps=[
                (f"podman load -i {file}", "then push it to your registry"),
                (f"ctr --namespace k8s.io images import {file}", "or load it on a node, without a registry"),
            ],
        )
    return ExitCode.OK


def _image(recipe: Callable[[Path], OciImage], progress: Progress, *, plain: bool) -> tuple[OciImage, str]:
    """Returns the image, and why its modules are not compiled (empty if they are)."""
    if not plain and compiled_package.can_compile():
        progress.begin("compiling the modules of this source tree (--plain skips it)")
    with compiled_package.plain() if plain else compiled_package.compiled() as package:
        progress.begin("packing the Python of this machine")
        return recipe(package.directory), package.plain_reason


_EXAMPLES = EXAMPLES.replace("{version}", __version__)
_BUILD = Command(
    _build,
    _BUILD_DESCRIPTION,
    _EXAMPLES.replace(" build", ""),
    _add_flags,
    summary="write the image as an OCI archive",
)
COMMAND = CommandGroup(_DESCRIPTION, {"Commands": {"build": _BUILD}}, _EXAMPLES)
