"""``bootbridge image build``: our server and agent as an OCI archive, made without a registry or a daemon."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bootbridge import __version__
from bootbridge.cli.command import complain, show
from bootbridge.cli.verb import DONE, Parser, run_verb, words
from bootbridge.common.files import Asset, write_file
from bootbridge.image import oci, recipes

DESCRIPTION = """\
Build the image of proxy-server and proxy-agent from this machine's Python: the interpreter,
what the two programs import, and no shell. The same sources give the same digest."""
EXAMPLES = """\
{program} build --output bootbridge.tar
podman load -i bootbridge.tar && podman push localhost/bootbridge:{version} registry.example/bootbridge
ctr --namespace k8s.io images import bootbridge.tar
"""


def main(argv: Sequence[str] | None = None, program: str = "bootbridge image") -> int:
    return run_verb(program, lambda: _run(words(argv), program))


def _run(argv: list[str], program: str) -> int:
    parser = Parser(program, DESCRIPTION, EXAMPLES.replace("{version}", __version__))
    parser.add_argument("action", choices=["build"], help="what to do")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="bootbridge.tar", help="(default bootbridge.tar)"
    )
    name = f"localhost/bootbridge:{__version__}"
    parser.add_argument(
        "--name", metavar="REF", default=name, help=f"what runtimes will call it (default {name})"
    )
    parser.add_argument("--json", action="store_true", help="tell the result as JSON")
    flags = parser.parse_args(argv)
    complain(f"{program}: packing this machine's Python (about ten seconds)")
    image = recipes.tunnel()
    write_file(Path(flags.output), Asset(oci.archive({flags.name: image})))
    told = {"file": flags.output, "name": flags.name, "digest": image.digest, "compressedBytes": image.size}
    if flags.json:
        show(json.dumps(told, indent=2) + "\n")
    else:
        megabytes = f"{image.size / 1e6:.1f} MB compressed"
        show(f"{flags.output}: {flags.name}, {megabytes}\n{image.digest}\n")
    return DONE
