"""Flags by which `up`, `down`, `status`, `doctor` and `gather` find node, cluster and recorded plan."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bootbridge.bootstrap.install import install_record
from bootbridge.bootstrap.machine import address, network
from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.plan import PATHS, Flavour, IPAddress, Plan, ProxyImage
from bootbridge.cli.command import require_root
from bootbridge.cli.plan_flags import add_plan_flags, plan_from
from bootbridge.common.files import read_file
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ClusterClient


def add_install_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig of the cluster (default: the node's admin kubeconfig)",
    )
    add("--root", metavar="DIR", default="/", help="where the node's file system is mounted (default /)")
    add("--json", action="store_true", help="print the result as JSON on stdout; progress goes to stderr")


def add_recorded_plan_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what a command needs that uses the recorded plan, or default names: no flags of a plan."""
    add_plan_flags(parser, only=())
    parser.add_argument(
        "--flavour",
        choices=list(map(str, Flavour)),
        help="installer of the cluster (default: that of the installation on this node, else kubeadm)",
    )


def open_host(flags: argparse.Namespace) -> Host:
    root = Path(flags.root)
    if not root.is_dir():
        raise OperatorError(f"directory not found: {flags.root}", subject="--root")
    return Host(root.resolve())


def require_root_of(host: Host) -> None:
    """The files of this machine belong to root; another --root may belong to anybody."""
    if host.root == Path("/"):
        require_root()


def require_readable(host: Host) -> None:
    """Raises if files of an installation are not ours to read: it would look as if they did not exist."""
    for paths in PATHS.values():
        path = host.path(paths.state)
        while not os.path.lexists(path) and path != path.parent:
            path = path.parent
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            require_root()


def recorded_plan(flags: argparse.Namespace, host: Host) -> Plan | None:
    """Returns the plan of the installation on this node, or None."""
    require_readable(host)
    wanted = [Flavour(flags.flavour)] if flags.flavour else [Flavour.KUBEADM, Flavour.OPENSHIFT]
    for flavour in wanted:
        path = PATHS[flavour].plan_record
        data = host.read(path)
        if data is not None:
            return record.load(data, path)
    return None


def recorded_or_default_plan(flags: argparse.Namespace, host: Host) -> tuple[Plan, bool]:
    """Returns the recorded plan, else one with default names; and whether it was recorded."""
    recorded = recorded_plan(flags, host)
    return (recorded or default_plan(flags)), recorded is not None


def default_plan(flags: argparse.Namespace) -> Plan:
    """A plan with default names, paths and ports: enough to find and remove resources."""
    flavour = Flavour(flags.flavour or Flavour.KUBEADM)
    image = ProxyImage("bootbridge", "unknown") if flavour is Flavour.KUBEADM else ProxyImage()
    return plan_from(flags, base=Plan(flavour=flavour, image=image))


def plan_to_install(flags: argparse.Namespace, host: Host) -> Plan:
    """Flags override --plan, which overrides the recorded plan, which overrides the defaults."""
    base = record.load(read_file(flags.plan, "--plan"), flags.plan) if flags.plan else None
    recorded = recorded_plan(flags, host)
    base = base or recorded
    if base is None and not flags.flavour:
        flags.flavour = Flavour.KUBEADM
    plan = plan_from(flags, base=base)
    if plan.flavour is Flavour.OPENSHIFT:
        hint = "use `bootbridge inject bootstrap.ign`: bootkube.sh then installs the tunnel"
        raise OperatorError("not supported by `up`: openshift", subject="--flavour", hint=hint)
    if recorded and recorded.protocol is not plan.protocol:
        # A kube-apiserver reads its egress selector once, when it starts.
        text = f"cannot be changed: the tunnel is installed with {recorded.protocol}"
        raise OperatorError(text, subject="--protocol", hint="run `bootbridge down` first")
    return plan


def kubeconfig_of(flags: argparse.Namespace, host: Host, plan: Plan) -> Path:
    """The given one, else the one given to the earlier `up`, else the node's admin kubeconfig."""
    noted = install_record.load(host, plan)
    given = flags.kubeconfig or (noted.kubeconfig if noted else "")
    return Path(given) if given else host.path(plan.paths.kubeconfig)


def open_cluster(flags: argparse.Namespace, host: Host, plan: Plan) -> ClusterClient | None:
    """Returns None while the node has no admin kubeconfig and none is given."""
    path = kubeconfig_of(flags, host, plan)
    if not path.exists() and not flags.kubeconfig:
        return None
    return ClusterClient.from_kubeconfig(path)


def node_addresses(plan: Plan) -> tuple[IPAddress, ...]:
    try:
        seen = network.observe()
    except OperatorError:
        if not plan.node_ips:
            raise
        seen = network.NodeNetwork()
    return address.choose(plan.node_ips, plan.networks.machine, seen, plan.networks.families)
