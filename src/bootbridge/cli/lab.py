"""``bootbridge lab``: a real Kubernetes bootstrap on one machine, to look at and to prove things with."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bootbridge.cli.command import Command, CommandGroup, ExitCode
from bootbridge.cli.output import print_error, print_output
from bootbridge.common.progress import Progress
from bootbridge.errors import OperatorError
from bootbridge.lab import components, instances, permanent_apiserver
from bootbridge.lab.bootstrapper_demo import BootstrapperDemo
from bootbridge.lab.bring_up import LabBuilder
from bootbridge.lab.components import BUILT_HERE, SOURCES, konnectivity_programs
from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE, Images
from bootbridge.lab.lab import Lab
from bootbridge.lab.layout import FAMILIES, Layout
from bootbridge.lab.namespaces import check_node_directory
from bootbridge.lab.status import status
from bootbridge.lab.tunnel_demo import TunnelDemo

DESCRIPTION = """\
A bootstrap node and cluster nodes on this machine, each in namespaces of its own: etcd, kube-apiserver,
kubelets and containerd, all real, without a registry and without touching this machine's network. The
bootstrap node has no route into the pod network, as in life; `lab tunnel` installs the tunnel.

Needs root, and what `{program} prepare` builds and installs.
Everything lies in one directory."""
EXAMPLES = """
{program} prepare
{program} up --nodes 2
{program} kubectl get nodes
{program} tunnel
{program} shell node1
{program} down
"""
# Unless told otherwise: cluster nodes beside a bootstrap node, or blank instances.
_NODES, _INSTANCES = 2, 4
# Words for the Go originals where an image is asked for.
KONNECTIVITY_PROGRAMS = "konnectivity"


# --- flags


def _add_directory(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get("BOOTBRIDGE_LAB") or str(Path.home() / ".cache" / "bootbridge" / "lab")
    parser.add_argument(
        "--dir", metavar="DIR", default=default, help="the lab's directory, or BOOTBRIDGE_LAB (%(default)s)"
    )
    parser.add_argument(
        "--bin-dir", metavar="DIR", help="where kube-apiserver and its like are, if not built by `prepare`"
    )


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="cluster nodes, 1 to 8 (default 2; blank instances 4)"
    )
    parser.add_argument(
        "--ip", choices=list(FAMILIES), default="ipv4", help="address families (default ipv4)"
    )

    parser.add_argument(
        "--bootstrapper",
        action="store_true",
        help="blank instances, each with a TPM and `bootbridge node run`; `lab init` makes the cluster",
    )
    parser.add_argument(
        "--control-planes",
        type=int,
        metavar="N",
        help="how many of the blank instances may become control planes (default 1; of 4 and more 2)",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for scripts")


def _add_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="a cluster node, for example node1")


def _add_log_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", nargs="?", help="for example bootstrap")
    parser.add_argument("name", metavar="PROGRAM", nargs="?", help="etcd, containerd or kubelet")


def _directory(flags: argparse.Namespace) -> Path:
    return Path(flags.dir).resolve()


def _found(flags: argparse.Namespace, *, bootstrapper: bool = False) -> components.Components:
    bin_dir = Path(flags.bin_dir).resolve() if flags.bin_dir else None
    return components.find(bin_dir, bootstrapper=bootstrapper)


def _images(lab: Lab, found: components.Components) -> Images:
    return Images(lab.image_directory, found, konnectivity_programs())


# --- actions


def _prepare(flags: argparse.Namespace) -> int:
    scripts = SOURCES / "peers" / "kubernetes"
    if (scripts / "build").exists():
        for script, *more in _preparations(flags.bin_dir):
            if subprocess.run([scripts / script, *more]).returncode:
                return ExitCode.ERROR
    found = _found(flags)
    print_output(f"All there; kube-apiserver is {found['kube-apiserver']}.\n")
    return ExitCode.OK


def _preparations(bin_dir: str | None) -> list[tuple[str, ...]]:
    """The scripts to run; with --bin-dir nothing is built but what no release brings."""
    names = tuple(name for name in BUILT_HERE if not Path(bin_dir, name).exists()) if bin_dir else ()
    if bin_dir and not names:
        return [("packages",)]
    # Whether it can be built is asked first: nothing is installed that would then lie idle.
    return [("build", "--check"), ("packages",), ("build", *names)]


def _up(flags: argparse.Namespace) -> int:
    lab = Lab(_directory(flags), _layout(flags))
    found = _found(flags, bootstrapper=lab.layout.blank)
    check_node_directory(lab.directory)
    builder = instances.InstancesBuilder if lab.layout.blank else LabBuilder
    with lab.locked():
        try:
            builder(lab, found, _images(lab, found), Progress(sys.stderr)).bring_up()
        except KeyboardInterrupt:
            print_error("bootbridge lab: interrupted, taking down what was begun")
            with _sigint_ignored():
                _report_leftovers(lab.down())
            raise
    print_output(_BLANK if lab.layout.blank else _UP)
    return ExitCode.OK


_UP = "The lab is up: `bootbridge lab kubectl get nodes` asks, `bootbridge lab tunnel` installs the tunnel.\n"
_BLANK = """\
The instances are up and blank: `bootbridge lab init` makes the cluster on the first, and the others join by
themselves. `bootbridge lab logs node2 bootstrapper` shows how, `bootbridge lab kubectl get nodes` who did.
"""


def _layout(flags: argparse.Namespace) -> Layout:
    if not flags.bootstrapper:
        if flags.control_planes is not None:
            raise OperatorError("is for --bootstrapper", subject="--control-planes")
        return Layout(_NODES if flags.nodes is None else flags.nodes, flags.ip)
    nodes = _INSTANCES if flags.nodes is None else flags.nodes
    control_planes = flags.control_planes
    if control_planes is None:
        control_planes = 2 if nodes >= _INSTANCES else 1
    if control_planes < 1:
        raise OperatorError("there must be one at least", subject="--control-planes")
    return Layout(nodes, flags.ip, control_planes)


def _init(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    if not lab.layout.blank:
        hint = "`bootbridge lab down`, then `bootbridge lab up --bootstrapper`"
        raise OperatorError("this lab's cluster is made already", hint=hint)
    return subprocess.run(instances.init_command(lab, *flags.arguments)).returncode


def _demo(flags: argparse.Namespace) -> int:
    """The lab is taken down whatever happens, and the exit code says whether all of it held."""
    lab = Lab(_directory(flags), _layout(flags))
    found = _found(flags, bootstrapper=lab.layout.blank)
    check_node_directory(lab.directory)
    story = BootstrapperDemo if lab.layout.blank else TunnelDemo
    progress = Progress(sys.stderr)
    with lab.locked():
        lab.check_not_in_use()
        try:
            story(lab, found, _images(lab, found), progress).run()
        finally:
            progress.begin("lab down")
            with _sigint_ignored():
                left = lab.down()
            progress.end("; ".join(left) or "nothing is left but its images", good=not left)
    return ExitCode.FINDINGS if left else ExitCode.OK


def _down(flags: argparse.Namespace) -> int:
    lab = Lab(_directory(flags), Layout())
    if not lab.exists:
        print_output(f"There is no lab in {lab.directory}.\n")
        return ExitCode.OK
    with lab.locked():
        left = lab.down()
    _report_leftovers(left)
    if not left:
        print_output(f"Nothing of the lab is left but its images in {lab.image_directory}.\n")
    return ExitCode.FINDINGS if left else ExitCode.OK


def _report_leftovers(left: Sequence[str]) -> None:
    print_error(*(f"bootbridge lab: left behind: {each}" for each in left))


@contextmanager
def _sigint_ignored() -> Iterator[None]:
    """A second Ctrl-C does not end the cleaning up after the first."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _status(flags: argparse.Namespace) -> int:
    found = status(Lab.open(_directory(flags)), _found(flags))
    print_output(json.dumps(found.document, indent=2) + "\n" if flags.json else found.text)
    return ExitCode.OK if found.works else ExitCode.FINDINGS


def _shell(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    name, *command = flags.arguments or [lab.layout.first.name]
    argv = lab.namespaces(name).command(command or [os.environ.get("SHELL", "/bin/sh")])
    return subprocess.run(argv).returncode


def _kubectl(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    node, rest = "", flags.arguments
    if rest[:1] == ["--on"]:
        if len(rest) < 2:
            raise OperatorError("--on needs a node", hint="for example: --on node1 get pods")
        node, rest = rest[1], rest[2:]
    return subprocess.run(lab.kubectl(_found(flags), *rest, node=node)).returncode


def _logs(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    if not flags.name:
        known = sorted(f"{path.parent.name} {path.stem}" for path in (lab.directory / "logs").glob("*/*.log"))
        raise OperatorError("logs needs a node and a program", hint=f"one of: {', '.join(known)}")
    try:
        return print_output(lab.log(flags.node, flags.name).read_text(errors="replace"))
    except FileNotFoundError:
        hint = "`bootbridge lab logs` names those that have; pods: `bootbridge lab kubectl logs`"
        raise OperatorError(f"{flags.name} has said nothing on {flags.node}", hint=hint) from None


def _tunnel(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    image, rest = _image_asked_for(flags.arguments)
    if image == KONNECTIVITY_IMAGE:
        _bring_originals(lab, _found(flags))
    return subprocess.run(lab.bootbridge("up", *lab.tunnel_flags(image), *rest)).returncode


def _bring_originals(lab: Lab, found: components.Components) -> None:
    if konnectivity_programs() is None:
        raise OperatorError("the Go originals are not built", hint="make peers")
    for node in lab.layout.all_nodes:
        _images(lab, found).import_into(lab.namespaces(node.name), KONNECTIVITY_IMAGE)


def _image_asked_for(asked: list[str]) -> tuple[str, list[str]]:
    """The image of the tunnel, and the words that do not choose it."""
    for place, word in enumerate(asked):
        if word == f"--image={KONNECTIVITY_PROGRAMS}":
            return KONNECTIVITY_IMAGE, asked[:place] + asked[place + 1 :]
        if asked[place : place + 2] == ["--image", KONNECTIVITY_PROGRAMS]:
            return KONNECTIVITY_IMAGE, asked[:place] + asked[place + 2 :]
    return TUNNEL_IMAGE, asked


def _remove_tunnel(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    return subprocess.run(lab.bootbridge("down", *flags.arguments)).returncode


def _permanent_apiserver(flags: argparse.Namespace) -> int:
    lab, found = Lab.open(_directory(flags)), _found(flags)
    permanent_apiserver.start(lab, flags.node, found, _images(lab, found), Progress(sys.stderr))
    print_output(f"`bootbridge lab kubectl --on {flags.node} …` asks it.\n")
    return ExitCode.OK


def _command(
    run: Callable[[argparse.Namespace], int],
    summary: str,
    description: str = "",
    examples: str = "{program}",
    flags: Callable[[argparse.ArgumentParser], None] | None = None,
    *,
    needs_root: bool = True,
    passthrough: str = "",
    passes_help: bool = False,
) -> Command:
    def add_flags(parser: argparse.ArgumentParser) -> None:
        _add_directory(parser)
        if flags:
            flags(parser)

    return Command(
        run,
        description,
        examples,
        add_flags,
        summary=summary,
        passthrough=passthrough,
        passes_help=passes_help,
        needs_root=needs_root,
    )


_COMMANDS = {
    "prepare": _command(
        _prepare,
        "build and install what a lab is made of",
        "Kubernetes is built from source, which takes minutes, and the rest comes from Debian's packages;\n"
        "what is there already is left alone. With --bin-dir, only what no release of Kubernetes brings is\n"
        "built; without the source tree it is the only way, and all of it is looked for there.",
        needs_root=False,
    ),
    "up": _command(
        _up,
        "bring a lab up",
        "What an interrupted `up` left behind is removed first.",
        "{program}\n{program} --nodes 3 --ip dual --dir /tmp/lab\n"
        "{program} --bootstrapper --nodes 4 --control-planes 2",
        _add_shape,
    ),
    "init": _command(
        _init,
        "make the cluster of blank instances: `bootbridge node init` of the first",
        "After `up --bootstrapper`. Flags after it are those of `bootbridge node init`; the operator's\n"
        "files (cluster.yaml, policy.yaml, the init secret, then admin.conf) are in DIR/operator.",
        "{program}\n{program} --json",
        passthrough="INIT-FLAG",
    ),
    "demo": _command(
        _demo,
        "show it all once: a webhook that blocks, the bridge, its answers, the removal",
        "Two to three minutes; the lab is taken down at the end, also on Ctrl-C. With --bootstrapper it is\n"
        "the other half: blank instances, an init, joins by attestation, and one that is refused at first.",
        "{program}\n{program} --bootstrapper",
        _add_shape,
    ),
    "tunnel": _command(
        _tunnel,
        "lay the tunnel: `bootbridge up` on the bootstrap node",
        "Flags after it are those of `bootbridge up`;\n"
        "`--image konnectivity` takes the Go originals (after `make peers`).",
        "{program}\n{program} --image konnectivity\n{program} --protocol=HTTPConnect",
        passthrough="UP-FLAG",
    ),
    "remove-tunnel": _command(
        _remove_tunnel,
        "take it away: `bootbridge down` on the bootstrap node",
        "Flags after it are those of `bootbridge down`.",
        passthrough="DOWN-FLAG",
    ),
    "permanent-apiserver": _command(
        _permanent_apiserver,
        "start a production kube-apiserver on a cluster node",
        "It shares the bootstrap node's etcd, reaches pods by itself, and knows of no tunnel.",
        "{program} node1",
        _add_node,
    ),
    "kubectl": _command(
        _kubectl,
        "ask the bootstrap kube-apiserver, or with --on NODE the one there",
        "",
        "{program} get pods -A\n{program} --on node1 get nodes",
        passthrough="WORD",
        passes_help=True,
    ),
    "shell": _command(
        _shell,
        "a shell on a node, or one command",
        "",
        "{program} node1\n{program} bootstrap ip route",
        passthrough="NODE [COMMAND]",
    ),
    "logs": _command(_logs, "what a program on a node said", "", "{program} node1 kubelet", _add_log_names),
    "status": _command(_status, "what runs", flags=_add_json),
    "down": _command(
        _down,
        "end everything; only the images are kept",
        "Needs nothing but the directory's name, whatever became of the lab.",
    ),
}
COMMAND = CommandGroup(DESCRIPTION, {"Commands": _COMMANDS}, EXAMPLES, _add_directory)
