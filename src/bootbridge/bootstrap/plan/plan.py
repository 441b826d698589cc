"""Decides everything about one tunnel, once: the flags' values, the names in the cluster and in certificates.

The ports are in `ports`, the paths in `paths`. Every command that creates, checks or removes something reads
it from a plan, so that they cannot disagree. A plan is frozen, validated when it is made, and does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import ClassVar, Literal

from bootbridge.bootstrap.plan.cloud import CloudSettings
from bootbridge.bootstrap.plan.paths import KUBEADM_PATHS, OPENSHIFT_PATHS, Paths
from bootbridge.bootstrap.plan.ports import PORT_MAX, PORT_MIN, Ports
from bootbridge.errors import OperatorError
from bootbridge.runtime.destination_policy import ALLOW_FLAG, parse_rules

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network
KeyKind = Literal["rsa-2048", "ecdsa-p256"]
KEY_KINDS: tuple[KeyKind, ...] = ("rsa-2048", "ecdsa-p256")

BOOTSTRAP_ONLY = "openshift.io/bootstrap-only"
PAYLOAD_IMAGE_NAME = "apiserver-network-proxy"
VALIDITY_MIN, VALIDITY_MAX = timedelta(hours=1), timedelta(days=7)


class Flavour(StrEnum):
    """Names the installer of the tunnel: OpenShift's bootkube.sh, or `bootbridge up` beside kubeadm."""

    OPENSHIFT = "openshift"
    KUBEADM = "kubeadm"


class Protocol(StrEnum):
    """Names the kube-apiserver's protocol on the socket, spelled as in EgressSelectorConfiguration."""

    GRPC = "GRPC"
    HTTP_CONNECT = "HTTPConnect"

    @property
    def server_mode(self) -> str:
        """Returns the value of proxy-server's --mode."""
        return "grpc" if self is Protocol.GRPC else "http-connect"


class Platform(StrEnum):
    """Names where the nodes run, spelled as in install-config."""

    AWS = "aws"
    AZURE = "azure"
    BAREMETAL = "baremetal"
    EXTERNAL = "external"
    GCP = "gcp"
    IBMCLOUD = "ibmcloud"
    NONE = "none"
    NUTANIX = "nutanix"
    OPENSTACK = "openstack"
    OVIRT = "ovirt"
    POWERVC = "powervc"
    POWERVS = "powervs"
    VSPHERE = "vsphere"


class BootkubeStage(StrEnum):
    """Names the stages on an OpenShift bootstrap node, recorded like bootkube.sh's other stages."""

    CERTS = "konnectivity-certs"
    SERVER = "konnectivity-server-bootstrap"
    AGENT_MANIFEST = "konnectivity-agent-manifest"
    AGENT_APPLY = "konnectivity-agent-apply"
    APISERVER_END = "konnectivity-apiserver-end"
    CLEANUP = "konnectivity-cleanup"


@dataclass(frozen=True)
class ProxyImage:
    """Names the image of server and agents: the release payload's Go programs, or ours.

    Both contain `/usr/bin/proxy-server` and `/usr/bin/proxy-agent`. Ours takes flags that the Go programs
    lack, so the manifests depend on the kind.
    """

    kind: Literal["konnectivity", "bootbridge"] = "konnectivity"
    reference: str = ""  # empty: looked up in the release payload on the node

    @property
    def is_ours(self) -> bool:
        return self.kind == "bootbridge"

    @property
    def from_payload(self) -> bool:
        return not self.reference


@dataclass(frozen=True)
class ClusterNetwork:
    """Holds a pod network and the prefix length of each node's share of it."""

    cidr: IPNetwork
    host_prefix: int


@dataclass(frozen=True)
class Networking:
    """Holds install-config's `networking`. The IP version of the first service network is the primary one."""

    machine: tuple[IPNetwork, ...] = (IPv4Network("10.0.0.0/16"),)
    cluster: tuple[ClusterNetwork, ...] = (ClusterNetwork(IPv4Network("10.128.0.0/14"), 23),)
    service: tuple[IPNetwork, ...] = (IPv4Network("172.30.0.0/16"),)

    @property
    def all(self) -> tuple[IPNetwork, ...]:
        return (*(network.cidr for network in self.cluster), *self.service, *self.machine)

    @property
    def families(self) -> tuple[int, ...]:
        """Returns the IP versions in use, the primary one first."""
        return tuple(dict.fromkeys(network.version for network in self.service))


PATHS = {Flavour.OPENSHIFT: OPENSHIFT_PATHS, Flavour.KUBEADM: KUBEADM_PATHS}
_NAMESPACES = {
    Flavour.OPENSHIFT: "openshift-bootstrap-konnectivity",
    Flavour.KUBEADM: "bootstrap-konnectivity",
}


@dataclass(frozen=True)
class TunnelPlan:
    """Holds the decisions that a tunnel for a bootstrap and permanent servers have in common."""

    protocol: Protocol = Protocol.GRPC
    image: ProxyImage = ProxyImage()
    ports: Ports = field(default_factory=Ports)

    server_pod_name: ClassVar[str]
    server_pod_namespace = "kube-system"

    @property
    def paths(self) -> Paths:
        raise NotImplementedError

    @property
    def server_labels(self) -> dict[str, str]:
        raise NotImplementedError


@dataclass(frozen=True)
class Plan(TunnelPlan):
    """Holds all decisions about one tunnel for a bootstrap. Raises OperatorError if one is invalid."""

    flavour: Flavour = Flavour.OPENSHIFT
    platform: Platform = Platform.NONE
    infra_id: str = ""  # the cluster's name in the cloud, on which names of firewall rules are based
    cloud: CloudSettings = field(default_factory=CloudSettings)  # where the firewall rule is created
    networks: Networking = Networking()
    node_ips: tuple[IPAddress, ...] = ()  # given by the operator; empty: found on the node
    key_kind: KeyKind = "rsa-2048"
    validity: timedelta = timedelta(days=1)
    host_network: bool = False  # whether agents use their node's network
    user_provisioned: bool = False  # whether the operator manages the network and its firewall
    # Whether agents of our image dial only into `networks` and what `allow_destinations` adds.
    restrict_destinations: bool = True
    allow_destinations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def paths(self) -> Paths:
        return PATHS[self.flavour]

    @property
    def agent_destinations(self) -> tuple[str, ...]:
        """Returns the rules of what agents may dial; empty: all that is not refused by default."""
        known = self.networks.all if self.restrict_destinations else ()
        return destination_rules(known, self.allow_destinations)

    # --- names in the cluster

    @property
    def proves_nodes(self) -> bool:
        """Whether agents prove their node with a token of their pod. The Go programs cannot."""
        return self.image.is_ours

    @property
    def agent_objects(self) -> tuple[str, ...]:
        """Returns the resources in the cluster, by their names in receipts, in the order of creation."""
        proof = ("role", "role-binding") if self.proves_nodes else ()
        return ("namespace", "secret", *proof, "daemonset")

    @property
    def namespace(self) -> str:
        return _NAMESPACES[self.flavour]

    server_pod_name = "konnectivity-server"
    daemonset_name = "konnectivity-agent"
    secret_name = "konnectivity-agent-certs"
    role_name = "konnectivity-agent"
    service_account_name = "default"

    @property
    def bootstrap_only(self) -> dict[str, str]:
        """Returns the label of every object that must be removed after the bootstrap."""
        return {BOOTSTRAP_ONLY: "true"}

    @property
    def selector(self) -> str:
        return f"{BOOTSTRAP_ONLY}=true"

    @property
    def agent_labels(self) -> dict[str, str]:
        return {"app": self.daemonset_name, **self.bootstrap_only}

    @property
    def server_labels(self) -> dict[str, str]:
        return {"app": self.server_pod_name, **self.bootstrap_only}

    # --- names in certificates

    ca_common_name = "bootbridge-signer"
    server_common_name = "konnectivity-server"
    agent_common_name = "konnectivity-agent"


def destination_rules(networks: Iterable[IPNetwork], more: tuple[str, ...]) -> tuple[str, ...]:
    """Returns rules that permit these networks; if there are none, all that is not refused by default."""
    known = tuple(map(str, networks))
    if not known:
        return ("0.0.0.0/0", "::/0", *more) if more else ()
    return tuple(dict.fromkeys([*known, *more]))


def _validate(plan: Plan) -> None:
    if plan.key_kind not in KEY_KINDS:
        hint = f"one of: {', '.join(KEY_KINDS)}"
        raise OperatorError(f"unknown key type {plan.key_kind!r}", subject="--key", hint=hint)
    if not VALIDITY_MIN <= plan.validity <= VALIDITY_MAX:
        hint = "1h to 168h: the tunnel is removed after the bootstrap"
        raise OperatorError(f"validity out of range: {plan.validity}", subject="--validity", hint=hint)
    validate_agent_port(plan.ports.agent)
    if plan.infra_id and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", plan.infra_id):
        hint = "infraID from metadata.json: lower case letters, digits and dashes"
        raise OperatorError(f"invalid infrastructure ID {plan.infra_id!r}", subject="--infra-id", hint=hint)
    if plan.flavour is Flavour.KUBEADM and plan.image.from_payload:
        hint = "give --image=REFERENCE: only OpenShift has a release payload with an image"
        raise OperatorError("required flag missing", subject="--image", hint=hint)
    for address in plan.node_ips:
        _validate_node_ip(address)
    _validate_networks(plan.networks)
    parse_rules(plan.allow_destinations, ALLOW_FLAG)


def validate_agent_port(port: int) -> None:
    if not PORT_MIN <= port <= PORT_MAX:
        hint = f"from {PORT_MIN} to {PORT_MAX}, the range that upstream's proxy-server accepts"
        raise OperatorError(f"port out of range: {port}", subject="--agent-port", hint=hint)


def _validate_node_ip(address: IPAddress) -> None:
    if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local:
        hint = "give an address that the cluster's nodes can dial"
        raise OperatorError(f"unreachable from other machines: {address}", subject="--node-ip", hint=hint)


def _validate_networks(networks: Networking) -> None:
    for name, given in (
        ("machineNetwork", networks.machine),
        ("clusterNetwork", networks.cluster),
        ("serviceNetwork", networks.service),
    ):
        if not given:
            raise OperatorError("at least one network is required", subject=f"networking.{name}")
    for network in networks.cluster:
        if not network.cidr.prefixlen <= network.host_prefix <= network.cidr.max_prefixlen:
            text = f"invalid prefix length /{network.host_prefix} for a node inside {network.cidr}"
            raise OperatorError(text, subject="networking.clusterNetwork.hostPrefix")
