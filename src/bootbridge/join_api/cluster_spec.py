"""cluster.yaml: every choice about the cluster that an init creates.

One document travels from `bootbridge node init` to the instance, and from it come kubeadm's documents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Annotated, Any, Final, Literal, get_args

from bootbridge.common import documents
from bootbridge.common.documents import CONFIG, Cidr, FieldError, checked, quoted
from bootbridge.join_api.components import ComponentSpec

Addon = Literal["coredns", "kube-proxy"]
ADDONS: Final[tuple[Addon, ...]] = get_args(Addon)
_RELEASE = re.compile(r"v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?")


def _release(text: str) -> str:
    if not _RELEASE.fullmatch(text):
        raise FieldError(f"invalid release {quoted(text)}", hint="for example v1.36.3")
    return text


@dataclass(frozen=True)
class ClusterSpec:
    __pydantic_config__ = CONFIG

    kubernetes_version: Annotated[str, checked(_release)]
    """Kubernetes release, for example v1.36.3."""
    name: str = "kubernetes"
    """Name of the cluster in kubeconfigs."""
    control_plane_endpoint: str = ""
    """host or host:port of the load balancer; empty: the first control plane's address."""
    api_server_sans: tuple[str, ...] = ()
    """Further names and addresses in the kube-apiserver's certificate."""
    pod_subnets: tuple[Cidr, ...] = ()
    """CIDRs of the pods."""
    service_subnets: tuple[Cidr, ...] = ()
    """CIDRs of the services; the first decides the primary IP family."""
    image_repository: str = ""
    """Registry of the control plane's images; empty: kubeadm's default."""
    etcd_image_tag: str = ""
    """Tag of etcd's image; empty: kubeadm's default."""
    cri_socket: str = "unix:///run/containerd/containerd.sock"
    """Socket of the container runtime."""
    without_addons: tuple[Addon, ...] = ()
    """Addons of kubeadm that are not installed."""
    ignore_preflight_errors: tuple[str, ...] = ()
    """Checks of kubeadm that do not count."""
    kubelet: Mapping[str, Any] = field(default_factory=dict)
    """Fields of KubeletConfiguration for every node; they win over ours."""
    components: tuple[ComponentSpec, ...] = ()
    """Programs that every node must have installed."""
    join_service_image: str = ""
    """Image of the join service: this program."""
    tunnel: bool = False
    """Whether the tunnel is installed during init, and removed once the pod network is reachable."""
    tunnel_image: str = ""
    """Image with proxy-server and proxy-agent; required with `tunnel`."""

    def __post_init__(self) -> None:
        if self.tunnel and not self.tunnel_image:
            hint = "name the image that holds proxy-server and proxy-agent, or leave out tunnel"
            raise FieldError("required field missing", subject="tunnelImage", hint=hint)

    @property
    def families(self) -> tuple[int, ...]:
        """IP versions of the cluster, the primary one first; kubeadm's own service subnet is IPv4."""
        return families_of(self.service_subnets)

    def dump(self) -> bytes:
        """Returns JSON without the fields that are empty."""
        document = documents.dump(self)
        chosen = {key: value for key, value in document.items() if value not in ([], {}, "", False)}
        return json.dumps(chosen, sort_keys=True).encode()


def families_of(service_subnets: Iterable[str]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ip_network(text).version for text in service_subnets)) or (4,)
