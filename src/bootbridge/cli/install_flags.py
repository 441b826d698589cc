"""The flags by which `up`, `down` and `status` find the node, the cluster, and the plan that was recorded."""

from __future__ import annotations

import argparse
from pathlib import Path

from bootbridge.bootstrap.install import install_record
from bootbridge.bootstrap.machine import address, network
from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.plan import PATHS, Flavour, IPAddress, Plan, ProxyImage
from bootbridge.cli.plan_flags import plan_from
from bootbridge.cli.values import parse_duration
from bootbridge.common.files import read_file
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ClusterClient


def add_install_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--kubeconfig",
        metavar="FILE",
        help="for the cluster's API (default: the node's own admin kubeconfig)",
    )
    add("--root", metavar="DIR", default="/", help="where the node's file system is mounted (default /)")
    add("--json", action="store_true", help="the result for scripts, on stdout; progress goes to stderr")


def open_host(flags: argparse.Namespace) -> Host:
    root = Path(flags.root)
    if not root.is_dir():
        raise OperatorError(f"{flags.root} is no directory", subject="--root")
    return Host(root.resolve())


def recorded_plan(flags: argparse.Namespace, host: Host) -> Plan | None:
    """The plan of the tunnel that was laid here, if any was."""
    wanted = [Flavour(flags.flavour)] if flags.flavour else [Flavour.KUBEADM, Flavour.OPENSHIFT]
    for flavour in wanted:
        path = PATHS[flavour].plan_record
        data = host.read(path)
        if data is not None:
            return record.load(data, path)
    return None


def plan_of_record(flags: argparse.Namespace, host: Host) -> tuple[Plan, bool]:
    """The plan recorded here, or one with the default names; and which of the two it is."""
    recorded = recorded_plan(flags, host)
    return (recorded or default_plan(flags)), recorded is not None


def default_plan(flags: argparse.Namespace) -> Plan:
    """Names, paths and ports alone: enough to find and to remove."""
    flavour = Flavour(flags.flavour or Flavour.KUBEADM)
    image = ProxyImage("bootbridge", "unknown") if flavour is Flavour.KUBEADM else ProxyImage()
    return plan_from(flags, base=Plan(flavour=flavour, image=image))


def plan_to_install(flags: argparse.Namespace, host: Host) -> Plan:
    """Flags win over --plan, that over the record of an earlier run, that over the defaults."""
    base = record.load(read_file(flags.plan, "--plan"), flags.plan) if flags.plan else None
    laid_before = recorded_plan(flags, host)
    base = base or laid_before
    if base is None and not flags.flavour:
        flags.flavour = Flavour.KUBEADM
    plan = plan_from(flags, base=base)
    if plan.flavour is Flavour.OPENSHIFT:
        hint = "there, bootkube.sh lays the tunnel: use `bootbridge inject bootstrap.ign`"
        raise OperatorError("an OpenShift bootstrap node has no Python", subject="--flavour", hint=hint)
    if laid_before and laid_before.protocol is not plan.protocol:
        # A kube-apiserver reads its egress selector once, when it starts.
        hint = "run `bootbridge down` first"
        raise OperatorError(
            f"the tunnel is laid with {laid_before.protocol}", subject="--protocol", hint=hint
        )
    return plan


def kubeconfig_of(flags: argparse.Namespace, host: Host, plan: Plan) -> Path:
    """As given, else as given to the `up` before, else the node's own."""
    noted = install_record.load(host, plan)
    given = flags.kubeconfig or (noted.kubeconfig if noted else "")
    return Path(given) if given else host.path(plan.paths.kubeconfig)


def open_cluster(flags: argparse.Namespace, host: Host, plan: Plan) -> ClusterClient | None:
    """None as long as the node has no kubeconfig of its own and none is given."""
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


def parse_seconds(text: str, flag: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        hint = "write it like 90s or 5m"
        raise OperatorError(f"{text!r} is no duration", subject=flag, hint=hint) from None
