"""The files of a lab of blank instances: node.yaml and metadata per instance, cluster spec and policy.

Metadata and policy agree: each instance is enrolled by the key of its TPM, and its boot measurements are
known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bootbridge.common.files import Asset, Tree
from bootbridge.common.yaml_text import to_yaml
from bootbridge.join_api.cluster_spec import ADDONS, ClusterSpec
from bootbridge.join_api.instance import Role
from bootbridge.lab.credentials import apiserver_endpoint
from bootbridge.lab.images import KUBEADM_REPOSITORY, NODE_IMAGE, TUNNEL_IMAGE
from bootbridge.lab.init import CGROUPS
from bootbridge.lab.layout import LabNode, Layout
from bootbridge.lab.node_runtime import CONTAINERD_SOCKET, KUBELET_SETTINGS
from bootbridge.lab.tpm import BOOT_REGISTERS, DEVICE

INSTANCE_CONFIG: Final = "/etc/bootbridge/node.yaml"
INSTANCE_METADATA: Final = "/etc/bootbridge/instance.yaml"
# Long enough to observe the tunnel before it is removed.
TUNNEL_QUIET_SECONDS: Final = 60
_ZERO: Final = "00" * 32


@dataclass(frozen=True)
class OperatorFiles:
    """Paths of the operator's files, in the lab's directory and on no instance."""

    directory: Path

    @property
    def spec(self) -> Path:
        return self.directory / "cluster.yaml"

    @property
    def policy(self) -> Path:
        return self.directory / "policy.yaml"

    @property
    def init_secret(self) -> Path:
        return self.directory / "init-secret"

    @property
    def master_secret(self) -> Path:
        return self.directory / "master-secret"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "admin.conf"


def cluster_spec(layout: Layout, kubernetes_version: str) -> ClusterSpec:
    """Returns the cluster spec for a lab's instances."""
    networks = layout.networks
    return ClusterSpec(
        kubernetes_version=kubernetes_version,
        name="lab",
        control_plane_endpoint=apiserver_endpoint(layout.first),
        pod_subnets=tuple(str(network.cidr) for network in networks.cluster),
        service_subnets=tuple(map(str, networks.service)),
        image_repository=KUBEADM_REPOSITORY,
        cri_socket=f"unix://{CONTAINERD_SOCKET}",
        # Their images would need a registry; the lab's own routes reach all pods without them.
        without_addons=ADDONS,
        ignore_preflight_errors=() if _has_cgroup_v2() else ("SystemVerification",),
        kubelet=dict(KUBELET_SETTINGS),
        join_service_image=NODE_IMAGE,
        tunnel_image=TUNNEL_IMAGE,
    )


def policy(layout: Layout, identities: Mapping[str, str]) -> dict[str, Any]:
    """Returns the join service's policy: the instances, and the evidence that each must show."""
    return {
        "evidence": _evidence(identities.values()),
        "instances": [_instance(layout, node, identities) for node in layout.all_nodes],
    }


def instance_files(
    layout: Layout, node: LabNode, identities: Mapping[str, str], init_secret_hash: str
) -> Tree:
    """Returns an instance's node.yaml and its metadata."""
    control_planes = [identities[each.name] for each in layout.all_nodes if layout.may_control(each)]
    config = {
        "metadata": {"static": {"file": INSTANCE_METADATA}},
        "evidence": {"tpm": {"device": DEVICE}},
        "joinService": {"evidence": _evidence(control_planes)},
        "tunnelQuietSeconds": TUNNEL_QUIET_SECONDS,
    }
    metadata: dict[str, Any] = {
        "self": _instance(layout, node, identities),
        "peers": [_instance(layout, other, identities) for other in layout.all_nodes if other != node],
    }
    if node == layout.first:
        metadata["initSecretHash"] = init_secret_hash
    return {
        INSTANCE_CONFIG: Asset(to_yaml(config), 0o600),
        INSTANCE_METADATA: Asset(to_yaml(metadata), 0o600),
    }


def _evidence(keys: Iterable[str]) -> dict[str, Any]:
    """Returns the required evidence: a TPM quote by one of these keys, with unchanged boot measurements."""
    measurements = {str(index): {"expected": _ZERO} for index in BOOT_REGISTERS}
    return {"tpm": {"measurements": measurements, "trustedKeys": sorted(keys)}}


def _instance(layout: Layout, node: LabNode, identities: Mapping[str, str]) -> dict[str, Any]:
    role = Role.CONTROL_PLANE if layout.may_control(node) else Role.WORKER
    return {
        "name": node.name,
        "role": str(role),
        "addresses": [str(each) for each in node.addresses],
        "identity": identities[node.name],
    }


def _has_cgroup_v2() -> bool:
    """Returns whether this machine uses cgroup v2; kubeadm's system verification rejects v1."""
    return (CGROUPS / "cgroup.controllers").exists()
