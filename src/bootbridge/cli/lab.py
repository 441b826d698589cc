"""``bootbridge lab``: a real Kubernetes bootstrap on one machine, to look at and to prove things with."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bootbridge.bootstrap.progress import Progress
from bootbridge.cli.command import complain, show
from bootbridge.cli.verb import DONE, FOUND, Parser, run_verb, words
from bootbridge.errors import OperatorError
from bootbridge.lab import components
from bootbridge.lab.bring_up import Builder, konnectivity_programs
from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE, Images
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import FAMILIES, Layout
from bootbridge.lab.status import status

DESCRIPTION = """\
A bootstrap node and cluster nodes on this machine, each in namespaces of its own: etcd, kube-apiserver,
kubelets and containerd, all real, without a registry and without touching this machine's network. The
bootstrap node has no route into the pod network, as in life; `lab bridge` lays the tunnel.

  up        bring it up                    shell     a shell on a node
  bridge    lay the tunnel (bootbridge up) kubectl   ask the bootstrap API server
  unbridge  take it away (bootbridge down) logs      what a program on a node said
  status    what runs                      down      end everything; only the images are kept

Needs root, and what `make kubernetes` builds. Everything lies in one directory."""
EXAMPLES = """
{program} up --nodes 2
{program} kubectl get nodes
{program} bridge
{program} shell node1
{program} down
"""


def main(argv: Sequence[str] | None = None, program: str = "bootbridge lab") -> int:
    return run_verb(program, lambda: _run(words(argv), program))


def _run(argv: list[str], program: str) -> int:
    parser = Parser(program, DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("action", choices=sorted(_ACTIONS), metavar="ACTION", help=", ".join(sorted(_ACTIONS)))
    add(
        "words",
        nargs=argparse.REMAINDER,
        help="for shell: NODE [COMMAND]; for kubectl: its words; for logs: NODE PROGRAM",
    )
    add(
        "--dir", metavar="DIR", default=_default_directory(), help="the lab's directory (default %(default)s)"
    )
    add("--nodes", type=int, default=2, metavar="N", help="cluster nodes, 1 to 8 (default 2)")
    add("--ip", choices=list(FAMILIES), default="ipv4", help="address families (default ipv4)")
    add(
        "--bin-dir",
        metavar="DIR",
        help="where kube-apiserver and its like are (default: what `make kubernetes` built)",
    )
    add("--json", action="store_true", help="status for scripts")
    flags = parser.parse_args(argv)
    if os.geteuid() != 0:
        raise OperatorError("a lab makes namespaces and mounts", hint="run it as root")
    return _ACTIONS[flags.action](flags)


def _default_directory() -> str:
    return os.environ.get("BOOTBRIDGE_LAB") or str(Path.home() / ".cache" / "bootbridge" / "lab")


def _directory(flags: argparse.Namespace) -> Path:
    return Path(flags.dir).resolve()


def _found(flags: argparse.Namespace) -> components.Components:
    return components.find(Path(flags.bin_dir).resolve() if flags.bin_dir else None)


def _up(flags: argparse.Namespace) -> int:
    found = _found(flags)
    lab = Lab(_directory(flags), Layout(flags.nodes, flags.ip))
    originals = konnectivity_programs()
    tunnels = (TUNNEL_IMAGE, KONNECTIVITY_IMAGE) if originals else (TUNNEL_IMAGE,)
    images = Images(lab.directory / "images", found, originals)
    try:
        Builder(lab, found, images, Progress(sys.stderr), tunnels).bring_up()
    except KeyboardInterrupt:
        complain("bootbridge lab: interrupted, taking down what was begun")
        lab.down()
        raise
    show("The lab is up: `bootbridge lab kubectl get nodes` asks, `bootbridge lab bridge` lays the tunnel.\n")
    return DONE


def _down(flags: argparse.Namespace) -> int:
    lab = Lab(_directory(flags), Layout())
    left = lab.down()
    complain(*(f"bootbridge lab: left behind: {each}" for each in left))
    if not left:
        show(f"Nothing of the lab is left but its images in {lab.directory}/images.\n")
    return FOUND if left else DONE


def _status(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    found = status(lab, _found(flags))
    if flags.json:
        show(json.dumps(found.document, indent=2) + "\n")
    else:
        show(found.text)
    return DONE if found.works else FOUND


def _shell(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    name, *command = flags.words or ["bootstrap"]
    argv = lab.space(name).command(command or [os.environ.get("SHELL", "/bin/sh")])
    return subprocess.run(argv).returncode


def _kubectl(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    return subprocess.run(lab.kubectl(_found(flags), *flags.words)).returncode


def _logs(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    if len(flags.words) != 2:
        known = sorted(f"{path.parent.name} {path.stem}" for path in (lab.directory / "logs").glob("*/*.log"))
        raise OperatorError("logs needs a node and a program", hint=f"one of: {', '.join(known)}")
    node, name = flags.words
    try:
        return show(lab.log(node, name).read_text(errors="replace"))
    except FileNotFoundError:
        raise OperatorError(f"{name} has said nothing on {node}", hint="bootbridge lab logs") from None


def _bridge(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    return subprocess.run(lab.bootbridge("up", *lab.bridge_flags(), *flags.words)).returncode


def _unbridge(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    return subprocess.run(lab.bootbridge("down", *flags.words)).returncode


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "up": _up,
    "down": _down,
    "status": _status,
    "shell": _shell,
    "kubectl": _kubectl,
    "logs": _logs,
    "bridge": _bridge,
    "unbridge": _unbridge,
}
