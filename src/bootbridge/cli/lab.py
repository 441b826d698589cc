"""``bootbridge lab``: a real Kubernetes bootstrap on one machine, to try and to test Bootbridge with."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bootbridge.cli.command import Command, CommandGroup, ExitCode
from bootbridge.cli.lab_next_steps import default_directory, in_this_lab
from bootbridge.cli.output import print_error, print_output, result_terminal
from bootbridge.common.progress import Progress
from bootbridge.common.terminal.figures import duration
from bootbridge.common.terminal.terminal import Mark
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
Runs a bootstrap node and cluster nodes on this machine, each in its own namespaces, with real etcd,
kube-apiserver, kubelets and containerd. Uses no registry and does not change this machine's network. The
bootstrap node has no route to the pod network; `{program} tunnel` installs the tunnel.

Needs root, and the programs that `{program} prepare` builds and installs. All files are in one directory
(--dir)."""
EXAMPLES = """
{program} prepare
{program} up --nodes 2
{program} kubectl get nodes
{program} tunnel
{program} shell node1
{program} down
"""
# The default number of cluster nodes, and of blank instances.
_NODES, _INSTANCES = 2, 4
# The short name of the image with Konnectivity's Go programs, for --image.
KONNECTIVITY = "konnectivity"


# --- flags


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        metavar="DIR",
        default=default_directory(),
        help="directory of the lab (default $BOOTBRIDGE_LAB, else %(default)s)",
    )
    parser.add_argument(
        "--bin-dir",
        metavar="DIR",
        help="directory of kube-apiserver, kubelet etc. (default: built by `prepare`)",
    )


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="number of cluster nodes, 1 to 8 (default 2; with --bootstrapper 4)",
    )
    parser.add_argument(
        "--ip", choices=list(FAMILIES), default="ipv4", help="address families (default ipv4)"
    )
    parser.add_argument(
        "--bootstrapper",
        action="store_true",
        help="start blank instances with a TPM and `bootbridge node run`; `lab init` creates the cluster",
    )
    parser.add_argument(
        "--control-planes",
        type=int,
        metavar="N",
        help="number of blank instances that may become control planes (default 1, with 4 or more nodes 2)",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the status as JSON")


def _add_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="a cluster node, for example node1")


def _add_log_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", nargs="?", help="name of a node, for example bootstrap")
    parser.add_argument(
        "name", metavar="PROGRAM", nargs="?", help="program: etcd, containerd, kubelet, swtpm or bootstrapper"
    )


def _directory(flags: argparse.Namespace) -> Path:
    return Path(flags.dir).resolve()


def _found(flags: argparse.Namespace, *, bootstrapper: bool = False) -> components.Components:
    bin_dir = Path(flags.bin_dir).resolve() if flags.bin_dir else None
    return components.find(bin_dir, bootstrapper=bootstrapper)


def _images(lab: Lab, found: components.Components) -> Images:
    return Images(lab.image_directory, found, konnectivity_programs())


# --- commands


def _prepare(flags: argparse.Namespace) -> int:
    scripts = SOURCES / "peers" / "kubernetes"
    if (scripts / "build").exists():
        for script, *more in _preparations(flags.bin_dir):
            if subprocess.run([scripts / script, *more]).returncode:
                return ExitCode.ERROR
    found = _found(flags)
    result_terminal().summary(
        Mark.GOOD,
        f"All programs found; kube-apiserver: {found['kube-apiserver']}",
        next_steps=in_this_lab(flags, [("bootbridge lab up", "start a lab (as root)")]),
    )
    return ExitCode.OK


def _preparations(bin_dir: str | None) -> list[tuple[str, ...]]:
    """Returns the scripts to run; with --bin-dir only the programs that no release contains are built."""
    names = tuple(name for name in BUILT_HERE if not Path(bin_dir, name).exists()) if bin_dir else ()
    if bin_dir and not names:
        return [("packages",)]
    # Checks first whether Go can build, so that no package is installed in vain.
    return [("build", "--check"), ("packages",), ("build", *names)]


def _up(flags: argparse.Namespace) -> int:
    lab = Lab(_directory(flags), _layout(flags))
    found = _found(flags, bootstrapper=lab.layout.blank)
    check_node_directory(lab.directory)
    builder = instances.InstancesBuilder if lab.layout.blank else LabBuilder
    progress = Progress(sys.stderr)
    with lab.locked():
        try:
            builder(lab, found, _images(lab, found), progress).bring_up()
        except KeyboardInterrupt:
            print_error("bootbridge lab up: interrupted, removing the lab")
            with _sigint_ignored():
                _report_leftovers(lab.down())
            raise
    what, steps = ("instances are", _BLANK) if lab.layout.blank else ("lab is", _UP)
    sentence = f"The {what} up ({duration(progress.seconds)})."
    result_terminal().summary(Mark.GOOD, sentence, next_steps=in_this_lab(flags, steps))
    return ExitCode.OK


_UP = (
    ("bootbridge lab kubectl get nodes", "see the cluster"),
    ("bootbridge lab tunnel", "install the tunnel"),
    ("bootbridge lab down", "remove everything"),
)
_BLANK = (
    ("bootbridge lab init", "create the cluster on the first instance; the others join"),
    ("bootbridge lab logs node2 bootstrapper", "print the log of a join"),
    ("bootbridge lab kubectl get nodes", "see the cluster"),
)


def _layout(flags: argparse.Namespace) -> Layout:
    if not flags.bootstrapper:
        if flags.control_planes is not None:
            raise OperatorError("requires --bootstrapper", subject="--control-planes")
        return Layout(_NODES if flags.nodes is None else flags.nodes, flags.ip)
    nodes = _INSTANCES if flags.nodes is None else flags.nodes
    control_planes = flags.control_planes
    if control_planes is None:
        control_planes = 2 if nodes >= _INSTANCES else 1
    if control_planes < 1:
        raise OperatorError(
            f"invalid value {control_planes}: at least 1 required", subject="--control-planes"
        )
    return Layout(nodes, flags.ip, control_planes)


def _init(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    if not lab.layout.blank:
        hint = "run `bootbridge lab down`, then `bootbridge lab up --bootstrapper`"
        raise OperatorError("not a lab of blank instances", subject=str(lab.directory), hint=hint)
    return subprocess.run(instances.init_command(lab, *flags.arguments)).returncode


def _demo(flags: argparse.Namespace) -> int:
    """Runs a demo in a new lab and removes the lab, also after a failure."""
    lab = Lab(_directory(flags), _layout(flags))
    found = _found(flags, bootstrapper=lab.layout.blank)
    check_node_directory(lab.directory)
    demo = BootstrapperDemo if lab.layout.blank else TunnelDemo
    progress = Progress(sys.stderr)
    with lab.locked():
        lab.check_not_in_use()
        try:
            demo(lab, found, _images(lab, found), progress).run()
        finally:
            progress.begin("lab down")
            with _sigint_ignored():
                left = lab.down()
            progress.end("; ".join(left) or "removed; images are kept", good=not left)
    mark, text = (Mark.WARNING, "something remains") if left else (Mark.GOOD, "all steps succeeded")
    sentence = f"Demo complete in {duration(progress.seconds)}: {text}."
    steps = [
        *in_this_lab(flags, [("bootbridge lab up", "start a lab to try it yourself")]),
        ("bootbridge up --help", "use it on a node"),
    ]
    progress.terminal.summary(mark, sentence, next_steps=steps)
    return ExitCode.FINDINGS if left else ExitCode.OK


def _down(flags: argparse.Namespace) -> int:
    lab = Lab(_directory(flags), Layout())
    if not lab.exists:
        print_output(f"No lab found in {lab.directory}.\n")
        return ExitCode.OK
    progress = Progress(sys.stderr if sys.stderr.isatty() else None)
    progress.begin("removing the lab")
    with lab.locked():
        left = lab.down()
    progress.cancel()
    _report_leftovers(left)
    if not left:
        sentence = f"Lab removed ({duration(progress.seconds)}); images are kept in {lab.image_directory}."
        result_terminal().summary(Mark.GOOD, sentence, apart=False)
    return ExitCode.FINDINGS if left else ExitCode.OK


def _report_leftovers(left: Sequence[str]) -> None:
    print_error(*(f"bootbridge lab: not removed: {each}" for each in left))


@contextmanager
def _sigint_ignored() -> Iterator[None]:
    """Ignores SIGINT, so that a second Ctrl-C does not interrupt the clean-up."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _status(flags: argparse.Namespace) -> int:
    found = status(Lab.open(_directory(flags)), _found(flags))
    if flags.json:
        print_output(json.dumps(found.document, indent=2) + "\n")
    else:
        found.show(result_terminal(), partial(in_this_lab, flags))
    return ExitCode.OK if found.is_up else ExitCode.FINDINGS


def _shell(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    name, *command = flags.arguments or [lab.layout.first.name]
    argv = lab.namespaces(name).command(command or [os.environ.get("SHELL", "/bin/sh")])
    return subprocess.run(argv).returncode


def _kubectl(flags: argparse.Namespace) -> int:
    node, rest = "", flags.arguments
    try:
        lab = Lab.open(_directory(flags))
    except OperatorError:
        if rest not in (["--help"], ["-h"]):
            raise
        _COMMANDS["kubectl"].parser(flags.program).print_help()  # without a lab there is no kubectl to ask
        return ExitCode.OK
    if rest[:1] == ["--on"]:
        if len(rest) < 2:
            raise OperatorError("node name missing", subject="--on", hint="for example: --on node1 get pods")
        node, rest = rest[1], rest[2:]
    return subprocess.run(lab.kubectl(_found(flags), *rest, node=node)).returncode


def _logs(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    if not flags.name:
        known = sorted(f"{path.parent.name} {path.stem}" for path in (lab.directory / "logs").glob("*/*.log"))
        raise OperatorError("node and program required", hint=f"one of: {', '.join(known)}")
    try:
        return print_output(lab.log(flags.node, flags.name).read_text(errors="replace"))
    except FileNotFoundError:
        hint = "`bootbridge lab logs` lists all logs; for pods run `bootbridge lab kubectl logs`"
        raise OperatorError("no log found", subject=f"{flags.name} on {flags.node}", hint=hint) from None


def _tunnel(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    image, rest = _split_image(flags.arguments)
    if image == KONNECTIVITY_IMAGE:
        _import_konnectivity(lab, _found(flags))
    return subprocess.run(lab.bootbridge("up", *lab.tunnel_flags(image), *rest)).returncode


def _import_konnectivity(lab: Lab, found: components.Components) -> None:
    if konnectivity_programs() is None:
        raise OperatorError("Konnectivity's Go programs not found", hint="run `make peers`")
    for node in lab.layout.all_nodes:
        _images(lab, found).import_into(lab.namespaces(node.name), KONNECTIVITY_IMAGE)


def _split_image(arguments: list[str]) -> tuple[str, list[str]]:
    """Returns the tunnel's image, and the arguments without `--image konnectivity`."""
    for index, word in enumerate(arguments):
        if word == f"--image={KONNECTIVITY}":
            return KONNECTIVITY_IMAGE, arguments[:index] + arguments[index + 1 :]
        if arguments[index : index + 2] == ["--image", KONNECTIVITY]:
            return KONNECTIVITY_IMAGE, arguments[:index] + arguments[index + 2 :]
    return TUNNEL_IMAGE, arguments


def _remove_tunnel(flags: argparse.Namespace) -> int:
    lab = Lab.open(_directory(flags))
    return subprocess.run(lab.bootbridge("down", *flags.arguments)).returncode


def _permanent_apiserver(flags: argparse.Namespace) -> int:
    lab, found = Lab.open(_directory(flags)), _found(flags)
    permanent_apiserver.start(lab, flags.node, found, _images(lab, found), Progress(sys.stderr))
    steps = [(f"bootbridge lab kubectl --on {flags.node} get nodes", "use it")]
    sentence = f"The API server on {flags.node} is ready."
    result_terminal().summary(Mark.GOOD, sentence, next_steps=in_this_lab(flags, steps))
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
        "build and install the programs of a lab",
        "Builds Kubernetes from source, which takes minutes, and installs the rest from Debian packages.\n"
        "Skips what is already there. With --bin-dir, builds only the programs that no release contains.\n"
        "Outside the source tree nothing can be built: --bin-dir must contain all programs.",
        needs_root=False,
    ),
    "up": _command(
        _up,
        "start a lab",
        "Removes first what an interrupted `up` left.",
        "{program}\n{program} --nodes 3 --ip dual --dir /tmp/lab\n"
        "{program} --bootstrapper --nodes 4 --control-planes 2",
        _add_shape,
    ),
    "init": _command(
        _init,
        "create the cluster of blank instances",
        "Runs `bootbridge node init` for the first instance, with the flags that follow; use it after\n"
        "`up --bootstrapper`. DIR/operator holds the operator's files: cluster.yaml, policy.yaml, the init\n"
        "secret and, when the cluster exists, admin.conf.",
        "{program}\n{program} --json",
        passthrough="INIT-FLAG",
    ),
    "demo": _command(
        _demo,
        "run a demo in a new lab, and remove the lab",
        "Takes two to three minutes. A webhook blocks a pod, the tunnel is installed, the webhook allows\n"
        "one pod and denies another, the tunnel is removed. With --bootstrapper: blank instances form a\n"
        "cluster by attestation, and an instance with a changed boot loader is rejected.",
        "{program}\n{program} --bootstrapper",
        _add_shape,
    ),
    "tunnel": _command(
        _tunnel,
        "install the tunnel: `bootbridge up` on the bootstrap node",
        "Passes the flags that follow to `bootbridge up`. `--image konnectivity` uses Konnectivity's Go\n"
        "programs (after `make peers`).",
        "{program}\n{program} --image konnectivity\n{program} --protocol=HTTPConnect",
        passthrough="UP-FLAG",
    ),
    "remove-tunnel": _command(
        _remove_tunnel,
        "remove the tunnel: `bootbridge down` on the bootstrap node",
        "Passes the flags that follow to `bootbridge down`.",
        passthrough="DOWN-FLAG",
    ),
    "permanent-apiserver": _command(
        _permanent_apiserver,
        "start the permanent kube-apiserver on a cluster node",
        "It uses the bootstrap node's etcd, reaches pods directly, and does not use the tunnel.",
        "{program} node1",
        _add_node,
    ),
    "kubectl": _command(
        _kubectl,
        "run kubectl on the bootstrap node, or with --on NODE on another",
        "Passes the words that follow to kubectl, also --help.",
        "{program} get pods -A\n{program} --on node1 get nodes",
        passthrough="WORD",
        passes_help=True,
    ),
    "shell": _command(
        _shell,
        "run a shell or a command on a node",
        "",
        "{program} node1\n{program} bootstrap ip route",
        passthrough="NODE [COMMAND]",
    ),
    "logs": _command(
        _logs, "print the log of a program on a node", "", "{program} node1 kubelet", _add_log_names
    ),
    "status": _command(_status, "show which nodes run and whether the API server is ready", flags=_add_json),
    "down": _command(
        _down,
        "stop and remove the lab; images are kept",
        "Works in any state of the lab: it needs only the directory's name.",
    ),
}
COMMAND = CommandGroup(DESCRIPTION, {"Commands": _COMMANDS}, EXAMPLES, _add_directory)
