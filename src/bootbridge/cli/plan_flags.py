"""The flags from which a plan is made, the same for every verb that needs one."""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from bootbridge.bootstrap.plan import install_config
from bootbridge.bootstrap.plan.plan import (
    KEY_KINDS,
    ClusterNetwork,
    Flavour,
    Image,
    IPAddress,
    IPNetwork,
    Networks,
    Plan,
    Platform,
    Ports,
    Protocol,
)
from bootbridge.cli.values import parse_duration
from bootbridge.common.files import read_file
from bootbridge.errors import OperatorError

# The installer's own variable; the flag wins over it.
NODE_IP_VARIABLE = "OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP"


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    """Add the group; `plan_from` reads it."""
    group = parser.add_argument_group(
        "the plan", "What is not given comes from --install-config, and else from the defaults named."
    )
    add = group.add_argument
    add("--install-config", metavar="FILE", help="the installer's install-config.yaml: platform, networks")
    add("--flavour", choices=list(Flavour), help="who brings the cluster up (default openshift)")
    platforms = ", ".join(Platform)
    add("--platform", choices=list(Platform), metavar="NAME", help=f"one of {platforms} (default none)")
    add("--infra-id", metavar="ID", help="infraID from metadata.json; firewall rules are named after it")
    add("--protocol", choices=list(Protocol), help="between kube-apiserver and server (default GRPC)")
    add(
        "--image",
        metavar="REF",
        help="image of server and agent, or 'payload' for the release's own (default)",
    )
    add(
        "--image-is",
        choices=["bootbridge", "konnectivity"],
        help="what an --image=REF holds: ours has more flags than the Go original (default bootbridge)",
    )
    add(
        "--node-ip",
        action="append",
        metavar="IP",
        help=f"of the bootstrap node, repeat for dual stack (default ${NODE_IP_VARIABLE}, else found there)",
    )
    add("--machine-network", action="append", metavar="CIDR", help="repeat for more (default 10.0.0.0/16)")
    add(
        "--cluster-network",
        action="append",
        metavar="CIDR[,HOSTPREFIX]",
        help="pod network and each node's share of it, repeat for more (default 10.128.0.0/14,23)",
    )
    add("--service-network", action="append", metavar="CIDR", help="repeat for more (default 172.30.0.0/16)")
    add(
        "--key",
        choices=list(KEY_KINDS),
        help="of the certificates; both are FIPS approved (default rsa-2048)",
    )
    add("--validity", metavar="DURATION", help="of the certificates, 1h to 168h (default 24h)")
    add(
        "--host-network",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="agents share their node's network (default: they are ordinary pods)",
    )
    add(
        "--user-provisioned",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="the network and its firewall are yours: no rule is made or removed",
    )
    add(
        "--agent-port", type=int, metavar="PORT", help="that agents dial on the bootstrap node (default 8091)"
    )


def plan_from(
    flags: argparse.Namespace, *, base: Plan | None = None, environment: Mapping[str, str] = os.environ
) -> Plan:
    """The plan: a flag wins over the install-config, that over `base`, that over the defaults."""
    fields: dict[str, object] = {}
    networks = (base or Plan()).networks
    if flags.install_config:
        config = install_config.parse(
            read_file(flags.install_config, "--install-config"), flags.install_config
        )
        fields |= {"platform": config.platform}
        networks = config.networks
    fields["networks"] = _networks(flags, networks)
    if flags.flavour:
        fields["flavour"] = Flavour(flags.flavour)
    if flags.platform:
        fields["platform"] = Platform(flags.platform)
    if flags.infra_id:
        fields["infra_id"] = flags.infra_id
    if flags.protocol:
        fields["protocol"] = Protocol(flags.protocol)
    if flags.image or flags.image_is:
        fields["image"] = _image(flags)
    if node_ips := _node_ips(flags, environment):
        fields["node_ips"] = node_ips
    if flags.key:
        fields["key_kind"] = flags.key
    if flags.validity:
        fields["validity"] = timedelta(seconds=_duration(flags.validity))
    if flags.host_network is not None:
        fields["host_network"] = flags.host_network
    if flags.user_provisioned is not None:
        fields["user_provisioned"] = flags.user_provisioned
    if flags.agent_port is not None:
        fields["ports"] = replace(base.ports if base else Ports(), agent=flags.agent_port)
    return replace(base, **fields) if base else Plan(**fields)  # type: ignore[arg-type]


def _image(flags: argparse.Namespace) -> Image:
    reference = flags.image or ""
    if reference in ("", "payload"):
        if flags.image_is == "bootbridge":
            text = "needs an --image=REFERENCE: the payload holds none of ours"
            raise OperatorError(text, subject="--image-is")
        return Image()
    if any(character.isspace() or character in "'\"\\$`|&;" for character in reference):
        raise OperatorError(f"{reference!r} is no image reference", subject="--image")
    return Image(flags.image_is or "bootbridge", reference)


def _node_ips(flags: argparse.Namespace, environment: Mapping[str, str]) -> tuple[IPAddress, ...]:
    if flags.node_ip:
        return tuple(_address(text, "--node-ip") for text in flags.node_ip)
    given = environment.get(NODE_IP_VARIABLE, "").strip()
    return (_address(given, NODE_IP_VARIABLE),) if given else ()


def _networks(flags: argparse.Namespace, networks: Networks) -> Networks:
    if flags.machine_network:
        machine = tuple(_network(text, "--machine-network") for text in flags.machine_network)
        networks = replace(networks, machine=machine)
    if flags.cluster_network:
        networks = replace(networks, cluster=tuple(map(_cluster_network, flags.cluster_network)))
    if flags.service_network:
        service = tuple(_network(text, "--service-network") for text in flags.service_network)
        networks = replace(networks, service=service)
    return networks


def _cluster_network(text: str) -> ClusterNetwork:
    cidr, _, prefix = text.partition(",")
    network = _network(cidr, "--cluster-network")
    default = install_config.HOST_PREFIX_V4 if network.version == 4 else install_config.HOST_PREFIX_V6
    if prefix and not prefix.isdigit():
        hint = "write it like 10.128.0.0/14,23"
        raise OperatorError(f"{prefix!r} is no prefix length", subject="--cluster-network", hint=hint)
    return ClusterNetwork(network, int(prefix) if prefix else max(default, network.prefixlen))


def _network(text: str, flag: str) -> IPNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        hint = "write it like 10.0.0.0/16 or fd00::/48"
        raise OperatorError(f"{text!r} is no network", subject=flag, hint=hint) from None


def _address(text: str, subject: str) -> IPAddress:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        hint = "write it like 10.0.0.5 or fd00::5"
        raise OperatorError(f"{text!r} is no IP address", subject=subject, hint=hint) from None


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        hint = "write it like 24h or 90m"
        raise OperatorError(f"{text!r} is no duration", subject="--validity", hint=hint) from None
