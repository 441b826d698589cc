"""The cluster that an init makes: every choice about it, typed, checked, and readable from a file.

One document travels from `bootbridge node init` to the instance, and from it come kubeadm's documents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_network
from typing import Any, Final, Self

from bootbridge.errors import OperatorError
from bootbridge.join_api.components import Component

ADDONS: Final = ("coredns", "kube-proxy")
_RELEASE = re.compile(r"v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?")


@dataclass(frozen=True)
class ClusterSpec:
    """Fields are named in files and on the wire as here, in camelCase."""

    kubernetes_version: str
    name: str = "kubernetes"
    # host or host:port of the load balancer; empty: the first control plane's address.
    control_plane_endpoint: str = ""
    api_server_sans: tuple[str, ...] = ()
    pod_subnets: tuple[str, ...] = ()
    service_subnets: tuple[str, ...] = ()
    image_repository: str = ""
    etcd_image_tag: str = ""
    cri_socket: str = "unix:///run/containerd/containerd.sock"
    # Of ADDONS, those that are not wanted.
    without_addons: tuple[str, ...] = ()
    ignore_preflight_errors: tuple[str, ...] = ()
    # Laid over our own KubeletConfiguration; for every node of the cluster.
    kubelet: Mapping[str, Any] = field(default_factory=dict)
    # What every node must have installed, by hash; see node/components.py.
    components: tuple[Component, ...] = ()
    # The image that the join service runs from; it is this program.
    join_service_image: str = ""
    # Lay the tunnel during init, with this image, and take it down once the pod network is reachable.
    tunnel: bool = False
    tunnel_image: str = ""

    def __post_init__(self) -> None:
        if not _RELEASE.fullmatch(self.kubernetes_version):
            said = f"{self.kubernetes_version!r} is not a release"
            raise OperatorError(said, subject="kubernetesVersion", hint="for example v1.36.3")
        for name in ("pod_subnets", "service_subnets"):
            for text in getattr(self, name):
                _network(text, _camel(name))
        for addon in self.without_addons:
            if addon not in ADDONS:
                hint = f"known are: {', '.join(ADDONS)}"
                raise OperatorError(f"{addon!r} is no addon of kubeadm's", subject="withoutAddons", hint=hint)
        if self.tunnel and not self.tunnel_image:
            hint = "name the image that holds proxy-server and proxy-agent, or leave out tunnel"
            raise OperatorError("is missing", subject="tunnelImage", hint=hint)

    @property
    def families(self) -> tuple[int, ...]:
        """IP versions of the cluster, the primary one first; kubeadm's own service subnet is IPv4."""
        return families_of(self.service_subnets)

    def dump(self) -> bytes:
        document: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "components":
                value = [component.document for component in value]
            if value not in ((), [], {}, "", False):
                document[_camel(each.name)] = list(value) if isinstance(value, tuple) else value
        return json.dumps(document, sort_keys=True).encode()

    @classmethod
    def load(cls, document: Any, subject: str = "cluster spec") -> Self:
        """From parsed JSON or YAML; an unknown or wrongly typed field is one clear error."""
        if not isinstance(document, Mapping):
            raise OperatorError("is not a mapping", subject=subject)
        known = {_camel(each.name): each for each in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in document.items():
            if key not in known:
                raise OperatorError(
                    f"unknown field {key!r}", subject=subject, hint=f"known are: {', '.join(known)}"
                )
            name = known[key].name
            values[name] = _typed(value, name, f"{subject}: {key}")
        if "kubernetes_version" not in values:
            raise OperatorError("kubernetesVersion is missing", subject=subject)
        return cls(**values)


_LISTS = {"api_server_sans", "pod_subnets", "service_subnets", "without_addons", "ignore_preflight_errors"}


def _typed(value: Any, name: str, subject: str) -> Any:
    if name in _LISTS:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise OperatorError("is not a list of strings", subject=subject)
        return tuple(value)
    if name == "components":
        if not isinstance(value, list):
            raise OperatorError("is not a list", subject=subject)
        return tuple(Component.load(each, subject) for each in value)
    wanted: type = {"kubelet": Mapping, "tunnel": bool}.get(name, str)
    if not isinstance(value, wanted):
        raise OperatorError(f"is not a {wanted.__name__.lower()}", subject=subject)
    return value


def families_of(service_subnets: Iterable[str]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ip_network(text).version for text in service_subnets)) or (4,)


def _network(text: str, subject: str) -> None:
    try:
        ip_network(text)
    except ValueError as error:
        raise OperatorError(str(error), subject=subject) from None


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join("SANs" if part == "sans" else part.capitalize() for part in rest)
