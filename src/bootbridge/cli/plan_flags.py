"""Declares the flags of a plan, shared by every verb that takes one, and builds the plan from them."""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from bootbridge.bootstrap.plan import install_config
from bootbridge.bootstrap.plan.plan import (
    KEY_KINDS,
    ClusterNetwork,
    Flavour,
    IPAddress,
    IPNetwork,
    Networking,
    Plan,
    Platform,
    Protocol,
    ProxyImage,
)
from bootbridge.bootstrap.plan.ports import Ports
from bootbridge.cli.values import parse_duration
from bootbridge.common.files import read_file
from bootbridge.errors import OperatorError

# Set by the installer's user. The flag has precedence.
NODE_IP_VARIABLE = "OPENSHIFT_INSTALL_BOOTSTRAP_NODE_IP"
# What a firewall rule depends on.
FIREWALL_FIELDS = (
    *("install_config", "platform", "infra_id", "machine_network", "node_ip", "user_provisioned"),
    "agent_port",
)


def add_plan_flags(
    parser: argparse.ArgumentParser, only: Collection[str] | None = None, *, title: str = "the plan"
) -> None:
    """Adds the flags that `plan_from` reads; `only` are the fields that this command uses, if not all."""
    has_file = only is None or "install_config" in only
    precedence = "A flag has precedence over --install-config, and that over the defaults below."
    group = parser.add_argument_group(title, precedence if has_file else None)

    def add(flag: str, **declaration: Any) -> None:
        field = flag.removeprefix("--").replace("-", "_")
        if only is None or field in only:
            group.add_argument(flag, **declaration)
        else:
            parser.set_defaults(**{field: None})

    add(
        "--install-config",
        metavar="FILE",
        help="read platform, cloud and networks from this install-config.yaml",
    )
    add(
        "--flavour",
        choices=list(Flavour),
        help="installer of the cluster (default openshift; `up`: kubeadm)",
    )
    platforms = ", ".join(Platform)
    add("--platform", choices=list(Platform), metavar="NAME", help=f"one of {platforms} (default none)")
    add("--infra-id", metavar="ID", help="infraID from metadata.json, the prefix of firewall rule names")
    add("--protocol", choices=list(Protocol), help="between kube-apiserver and server (default GRPC)")
    add(
        "--image",
        metavar="REF",
        help="image of server and agents, or 'payload' for the one of the release (default with openshift)",
    )
    add(
        "--image-is",
        choices=["bootbridge", "konnectivity"],
        help="programs in --image=REF: ours take more flags than the Go originals (default bootbridge)",
    )
    add(
        "--node-ip",
        action="append",
        metavar="IP",
        help=f"address of the bootstrap node, repeatable (default ${NODE_IP_VARIABLE}, else detected)",
    )
    add(
        "--machine-network",
        action="append",
        metavar="CIDR",
        help="network of the nodes, repeatable (default 10.0.0.0/16)",
    )
    add(
        "--cluster-network",
        action="append",
        metavar="CIDR[,HOSTPREFIX]",
        help="pod network and prefix length per node, repeatable (default 10.128.0.0/14,23)",
    )
    add(
        "--service-network",
        action="append",
        metavar="CIDR",
        help="services, repeatable (default 172.30.0.0/16)",
    )
    add(
        "--key",
        choices=list(KEY_KINDS),
        help="key type of the certificates, both FIPS approved (default rsa-2048)",
    )
    add("--validity", metavar="DURATION", help="validity of the certificates, 1h to 168h (default 24h)")
    add(
        "--host-network",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="run agents in the host network (default: in the pod network)",
    )
    add(
        "--restrict-destinations",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="agents of our image dial only into the networks above and --allow-destinations (default: if "
        "the networks are known, from flags or install-config)",
    )
    add(
        "--allow-destinations",
        action="append",
        metavar="RULES",
        help="further destinations, for example of webhooks outside the cluster: CIDRs with optional ports, "
        "comma separated or repeated",
    )
    add(
        "--user-provisioned",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="you manage the network and its firewall: no rule is created or removed",
    )
    add(
        "--agent-port",
        type=int,
        metavar="PORT",
        help="port on the bootstrap node that agents dial (default 8091)",
    )


def plan_from(
    flags: argparse.Namespace, *, base: Plan | None = None, environment: Mapping[str, str] = os.environ
) -> Plan:
    """Returns the plan. Precedence: flag, install-config, `base`, default."""
    fields: dict[str, object] = {}
    networks = (base or Plan()).networks
    if flags.install_config:
        text = read_file(flags.install_config, "--install-config")
        config = install_config.parse(text, flags.install_config)
        if config.is_in_place:
            problem = "is a bootstrap in place: it runs only one control plane at a time"
            hint = "such a cluster needs no tunnel; use the installer's files unchanged"
            raise OperatorError(problem, subject=f"{flags.install_config}: bootstrapInPlace", hint=hint)
        fields["platform"], networks = config.platform, config.networks
        fields["cloud"] = config.cloud
        fields["restrict_destinations"] = config.machine_network_is_certain
    elif base is None:
        fields["restrict_destinations"] = flags.flavour in (None, Flavour.OPENSHIFT)
    if flags.machine_network and flags.cluster_network and flags.service_network:
        fields["restrict_destinations"] = True
    fields["networks"] = networks_from(flags, networks)
    for field, convert in _CONVERTERS.items():
        value = getattr(flags, "key" if field == "key_kind" else field)
        if value not in (None, ""):
            fields[field] = convert(value)
    if flags.image or flags.image_is:
        fields["image"] = image_from(flags)
    if node_ips := _node_ips(flags, environment):
        fields["node_ips"] = node_ips
    if flags.agent_port is not None:
        fields["ports"] = replace(base.ports if base else Ports(), agent=flags.agent_port)
    return replace(base, **fields) if base else Plan(**fields)  # type: ignore[arg-type]


def image_from(flags: argparse.Namespace) -> ProxyImage:
    reference = flags.image or ""
    if reference in ("", "payload"):
        if flags.image_is == "bootbridge":
            hint = "give --image=REFERENCE, or omit --image-is"
            raise OperatorError("the release payload has no such image", subject="--image-is", hint=hint)
        return ProxyImage()
    if any(character.isspace() or character in "'\"\\$`|&;" for character in reference):
        hint = "for example registry.example/bootbridge:0.2.0"
        raise OperatorError(f"invalid image reference {reference!r}", subject="--image", hint=hint)
    return ProxyImage(flags.image_is or "bootbridge", reference)


def _node_ips(flags: argparse.Namespace, environment: Mapping[str, str]) -> tuple[IPAddress, ...]:
    if flags.node_ip:
        return tuple(_address(text, "--node-ip") for text in flags.node_ip)
    given = environment.get(NODE_IP_VARIABLE, "").strip()
    return (_address(given, NODE_IP_VARIABLE),) if given else ()


def networks_from(flags: argparse.Namespace, networks: Networking) -> Networking:
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
        hint = "for example 10.128.0.0/14,23"
        raise OperatorError(f"invalid prefix length {prefix!r}", subject="--cluster-network", hint=hint)
    return ClusterNetwork(network, int(prefix) if prefix else max(default, network.prefixlen))


def split_rules(given: Iterable[str]) -> tuple[str, ...]:
    """Returns the rules of a flag that takes lists and can be repeated."""
    return tuple(each.strip() for rules in given for each in rules.split(","))


def _network(text: str, flag: str) -> IPNetwork:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        hint = _network_hint(text)
        raise OperatorError(f"invalid CIDR {text!r}", subject=flag, hint=hint) from None
    if "/" not in text:
        # Python reads it as a network of one address, which is rarely meant.
        hint = f"write it as {text}/{24 if network.version == 4 else 64}, or {network} for this one address"
        raise OperatorError(f"prefix length missing in {text!r}", subject=flag, hint=hint)
    return network


def _network_hint(text: str) -> str:
    try:
        return f"bits are set behind the prefix length: write {ipaddress.ip_network(text, strict=False)}"
    except ValueError:
        return "for example 10.0.0.0/16 or fd00::/48"


def _address(text: str, subject: str) -> IPAddress:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        hint = "for example 10.0.0.5 or fd00::5"
        raise OperatorError(f"invalid IP address {text!r}", subject=subject, hint=hint) from None


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        hint = "for example 24h or 90m"
        raise OperatorError(f"invalid duration {text!r}", subject="--validity", hint=hint) from None


# Fields of a plan that one flag decides.
_CONVERTERS: dict[str, Callable[[Any], object]] = {
    "flavour": Flavour,
    "platform": Platform,
    "infra_id": str,
    "protocol": Protocol,
    "key_kind": str,
    "validity": lambda text: timedelta(seconds=_duration(text)),
    "host_network": bool,
    "restrict_destinations": bool,
    "allow_destinations": split_rules,
    "user_provisioned": bool,
}
