"""The plan: every decision about one tunnel, made once and read by everybody.

What is created, checked and taken away can never disagree, because names, labels,
ports, paths, addresses, validity and image stand here and nowhere else. A plan is
frozen and validated when it is made, and knows nothing of disks, clusters or clouds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal

from bootbridge.errors import OperatorError

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network
KeyKind = Literal["rsa-2048", "ecdsa-p256"]
KEY_KINDS: tuple[KeyKind, ...] = ("rsa-2048", "ecdsa-p256")

BOOTSTRAP_ONLY = "openshift.io/bootstrap-only"
PAYLOAD_IMAGE_NAME = "apiserver-network-proxy"
VALIDITY_MIN, VALIDITY_MAX = timedelta(hours=1), timedelta(days=7)
# Upstream's proxy-server refuses ports outside this range.
PORT_MIN, PORT_MAX = 1024, 49151
# The kernel's limit on a unix socket's path, without the closing zero.
SOCKET_PATH_BYTES_MAX = 107


class Flavour(StrEnum):
    """Who lays the tunnel: bootkube.sh on an OpenShift bootstrap node, or `bootbridge up` beside kubeadm."""

    OPENSHIFT = "openshift"
    KUBEADM = "kubeadm"


class Protocol(StrEnum):
    """What the kube-apiserver speaks on the socket, spelled as EgressSelectorConfiguration spells it."""

    GRPC = "GRPC"
    HTTP_CONNECT = "HTTPConnect"

    @property
    def server_mode(self) -> str:
        """The same decision as proxy-server's --mode spells it."""
        return "grpc" if self is Protocol.GRPC else "http-connect"


class Platform(StrEnum):
    """Where the nodes run, spelled as install-config spells it."""

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


@dataclass(frozen=True)
class Image:
    """Which programs run in the pods: the release payload's Go originals, or ours.

    Both keep `/usr/bin/proxy-server` and `/usr/bin/proxy-agent`. Ours takes flags that
    the original lacks, so the manifests must know which one it is.
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
    """A pod network, and the length of the prefix that each node gets out of it."""

    cidr: IPNetwork
    host_prefix: int


@dataclass(frozen=True)
class Networks:
    """The three networks of a cluster, in install-config's order: the first one's family is primary."""

    machine: tuple[IPNetwork, ...] = (IPv4Network("10.0.0.0/16"),)
    cluster: tuple[ClusterNetwork, ...] = (ClusterNetwork(IPv4Network("10.128.0.0/14"), 23),)
    service: tuple[IPNetwork, ...] = (IPv4Network("172.30.0.0/16"),)

    @property
    def families(self) -> tuple[int, ...]:
        """IP versions in use, the primary one first."""
        return tuple(dict.fromkeys(network.version for network in self.service))


@dataclass(frozen=True)
class Ports:
    """What listens on the bootstrap node, and on each agent's host or pod."""

    agent: int = 8091  # the only one that other machines reach
    server_health: int = 2041
    server_admin: int = 8095
    agent_health: int = 2042  # not the server's: on kubeadm an agent may share its host
    agent_admin: int = 8094


@dataclass(frozen=True)
class Paths:
    """Where everything lies on the bootstrap node. All absolute, all ours alone but the directories named."""

    state: str  # ours: created by the tunnel, removed with it
    static_pods: str  # the kubelet's
    cluster_manifests: str  # cluster-bootstrap's; on kubeadm the objects go straight to the API
    egress_config: str
    egress_config_seen_by_apiserver: str
    socket: str
    socket_seen_by_apiserver: str
    kubeconfig: str

    @property
    def tls(self) -> str:
        """Never below a directory that somebody copies into pods, as /opt/openshift/tls is."""
        return f"{self.state}/tls"

    @property
    def ca_cert(self) -> str:
        return f"{self.tls}/ca.crt"

    @property
    def server_cert(self) -> str:
        return f"{self.tls}/server.crt"

    @property
    def server_key(self) -> str:
        return f"{self.tls}/server.key"

    @property
    def agent_cert(self) -> str:
        return f"{self.tls}/agent.crt"

    @property
    def agent_key(self) -> str:
        return f"{self.tls}/agent.key"

    @property
    def templates(self) -> str:
        """Manifests with placeholders for what only the node knows."""
        return f"{self.state}/templates"

    @property
    def namespace_manifest(self) -> str:
        return f"{self.cluster_manifests}/bootbridge-namespace.yaml"

    @property
    def secret_manifest(self) -> str:
        return f"{self.cluster_manifests}/bootbridge-agent-secret.yaml"

    @property
    def daemonset_manifest(self) -> str:
        return f"{self.cluster_manifests}/bootbridge-agent-daemonset.yaml"

    @property
    def server_pod(self) -> str:
        return f"{self.static_pods}/konnectivity-server-pod.yaml"

    @property
    def config_override(self) -> str:
        return f"{self.state}/kube-apiserver-config-override.yaml"

    @property
    def plan_record(self) -> str:
        """The plan as JSON: what `down` and `doctor` read to know what `up` or `inject` decided."""
        return f"{self.state}/plan.json"

    @property
    def apiserver_pod(self) -> str:
        """kubeadm's static pod."""
        return f"{self.static_pods}/kube-apiserver.yaml"

    @property
    def injection_record(self) -> str:
        """How to give an ignition file back as it was before `inject`."""
        return f"{self.state}/injected.json"

    @property
    def socket_directory(self) -> str:
        return self.socket.rpartition("/")[0]


OPENSHIFT_PATHS = Paths(
    # A private prefix: from 4.23 on the installer ships files named konnectivity-* even with its tunnel off.
    state="/opt/openshift/bootbridge",
    static_pods="/etc/kubernetes/manifests",
    cluster_manifests="/opt/openshift/manifests",
    # The bootstrap kube-apiserver mounts bootstrap-configs, read-only, as /etc/kubernetes/config.
    egress_config="/etc/kubernetes/bootstrap-configs/bootbridge-egress-selector.yaml",
    egress_config_seen_by_apiserver="/etc/kubernetes/config/bootbridge-egress-selector.yaml",
    socket="/etc/kubernetes/bootstrap-configs/konnectivity-server.socket",
    socket_seen_by_apiserver="/etc/kubernetes/config/konnectivity-server.socket",
    kubeconfig="/opt/openshift/auth/kubeconfig",
)
KUBEADM_PATHS = Paths(
    state="/etc/kubernetes/bootbridge",
    static_pods="/etc/kubernetes/manifests",
    cluster_manifests="",
    egress_config="/etc/kubernetes/bootbridge/apiserver/egress-selector.yaml",
    egress_config_seen_by_apiserver="/etc/kubernetes/bootbridge/apiserver/egress-selector.yaml",
    socket="/run/bootbridge/konnectivity-server.socket",
    socket_seen_by_apiserver="/run/bootbridge/konnectivity-server.socket",
    kubeconfig="/etc/kubernetes/admin.conf",
)
PATHS = {Flavour.OPENSHIFT: OPENSHIFT_PATHS, Flavour.KUBEADM: KUBEADM_PATHS}
_NAMESPACES = {
    Flavour.OPENSHIFT: "openshift-bootstrap-konnectivity",
    Flavour.KUBEADM: "bootstrap-konnectivity",
}


class Stage(StrEnum):
    """The steps on an OpenShift bootstrap node, recorded as bootkube records its own."""

    CERTS = "konnectivity-certs"
    SERVER = "konnectivity-server-bootstrap"
    AGENT_MANIFEST = "konnectivity-agent-manifest"
    CLEANUP = "konnectivity-cleanup"


@dataclass(frozen=True)
class Plan:
    """All decisions about one tunnel."""

    flavour: Flavour = Flavour.OPENSHIFT
    platform: Platform = Platform.NONE
    infra_id: str = ""  # the cluster's name in the cloud; firewall rules are named after it
    protocol: Protocol = Protocol.GRPC
    image: Image = Image()
    networks: Networks = Networks()
    node_ips: tuple[IPAddress, ...] = ()  # given by the operator; empty: found on the node
    key_kind: KeyKind = "rsa-2048"
    validity: timedelta = timedelta(days=1)
    host_network: bool = False  # whether agents share their node's network
    user_provisioned: bool = False  # the network and its firewall belong to the operator
    ports: Ports = field(default_factory=Ports)

    def __post_init__(self) -> None:
        _check(self)

    # --- names in the cluster

    @property
    def namespace(self) -> str:
        return _NAMESPACES[self.flavour]

    server_pod_name = "konnectivity-server"
    server_pod_namespace = "kube-system"
    daemonset_name = "konnectivity-agent"
    secret_name = "konnectivity-agent-certs"

    @property
    def bootstrap_only(self) -> dict[str, str]:
        """The label on everything that must not outlive the bootstrap."""
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

    # --- names on the node

    @property
    def paths(self) -> Paths:
        return PATHS[self.flavour]

    @property
    def hook_script(self) -> str:
        """The functions that bootkube.sh calls, for nodes without Python."""
        return "/usr/local/bin/bootbridge-bootstrap.sh"

    @property
    def cleanup_unit(self) -> str:
        """Cleans up after a bootstrap that was given up: started by hand, never by itself."""
        return "/etc/systemd/system/bootbridge-cleanup.service"

    @property
    def config_override_seen_by_render(self) -> str:
        """The operator's render container sees /opt/openshift as /assets."""
        return self.paths.config_override.replace("/opt/openshift/", "/assets/", 1)

    @property
    def apiserver_config(self) -> str:
        """What the operator's render command made for the bootstrap kube-apiserver."""
        return f"{self.paths.socket_directory}/kube-apiserver-config.yaml"

    @property
    def loopback_kubeconfig(self) -> str:
        """For the bootstrap kube-apiserver on this node alone."""
        return f"{self.paths.kubeconfig}-loopback"

    @property
    def receipt(self) -> str:
        """What the removal found, removed and left: written last, and kept."""
        return "/var/log/bootbridge/receipt.json"

    def stage_marker(self, stage: Stage) -> str:
        return f"{self.paths.state}/{stage}.done"

    # --- names in certificates

    ca_common_name = "bootbridge-signer"
    server_common_name = "konnectivity-server"
    agent_common_name = "konnectivity-agent"


def _check(plan: Plan) -> None:
    if plan.key_kind not in KEY_KINDS:
        hint = f"one of: {', '.join(KEY_KINDS)}"
        raise OperatorError(f"unknown kind of key {plan.key_kind!r}", subject="--key", hint=hint)
    if not VALIDITY_MIN <= plan.validity <= VALIDITY_MAX:
        hint = "between 1h and 168h: the tunnel is for a bootstrap, not for keeps"
        raise OperatorError(f"{plan.validity} is no sensible validity", subject="--validity", hint=hint)
    if not PORT_MIN <= plan.ports.agent <= PORT_MAX:
        hint = f"from {PORT_MIN} to {PORT_MAX}, as upstream's proxy-server wants it"
        raise OperatorError(f"port {plan.ports.agent} is out of range", subject="--agent-port", hint=hint)
    if plan.infra_id and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", plan.infra_id):
        hint = "the infraID from metadata.json: lower case letters, digits and dashes"
        raise OperatorError(f"{plan.infra_id!r} is no infrastructure id", subject="--infra-id", hint=hint)
    if plan.flavour is Flavour.KUBEADM and plan.image.from_payload:
        hint = "give --image=REFERENCE: only an OpenShift release payload can be asked for one"
        raise OperatorError("no image is given", subject="--image", hint=hint)
    for address in plan.node_ips:
        _check_node_ip(address)
    _check_networks(plan.networks)


def _check_node_ip(address: IPAddress) -> None:
    unusable = address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local
    if unusable:
        hint = "give an address that the cluster's nodes can dial"
        text = f"{address} cannot be reached from other machines"
        raise OperatorError(text, subject="--node-ip", hint=hint)


def _check_networks(networks: Networks) -> None:
    for name, given in (
        ("machineNetwork", networks.machine),
        ("clusterNetwork", networks.cluster),
        ("serviceNetwork", networks.service),
    ):
        if not given:
            raise OperatorError("at least one network is needed", subject=f"networking.{name}")
    for network in networks.cluster:
        if not network.cidr.prefixlen <= network.host_prefix <= network.cidr.max_prefixlen:
            text = f"/{network.host_prefix} is no prefix of a node inside {network.cidr}"
            raise OperatorError(text, subject="networking.clusterNetwork.hostPrefix")
