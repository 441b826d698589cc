"""The configuration files of containerd and kubelet on a lab node.

All nodes share one kernel, possibly with cgroup v1 and without the right to change limits. So both programs
are configured to leave machine-wide settings alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bootbridge.common.files import Asset, Tree
from bootbridge.common.yaml_text import to_yaml
from bootbridge.lab.credentials import KUBECONFIGS, PKI
from bootbridge.lab.layout import LabNode

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CONTAINERD_CONFIG = "/etc/containerd/config.toml"
KUBELET_CONFIG = "/etc/kubernetes/kubelet.yaml"
KUBELET_PORT = 10250
STATIC_PODS = "/etc/kubernetes/manifests"
CNI_CONFIG = "/etc/cni/net.d/10-lab.conflist"
RESOLVER_CONFIG = "/etc/resolv.conf"
PAUSE_IMAGE = "localhost/pause:lab"
# Settings that every kubelet of a lab needs, also one that kubeadm configures.
KUBELET_SETTINGS: Mapping[str, Any] = {
    "failCgroupV1": False,
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    # Not an empty list: kubeadm would drop it, and the kubelet would use its default.
    "enforceNodeAllocatable": ["none"],
    "localStorageCapacityIsolation": False,
    "featureGates": {"KubeletInUserNamespace": True, "KubeletCrashLoopBackOffMax": True},
    # Containers that exit while the API server is down restart after 1 s instead of 10 s.
    "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
    "failSwapOn": False,
    "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    "fileCheckFrequency": "1s",
    # A changed static pod waits this long after the old one has ended.
    "syncFrequency": "2s",
    "nodeStatusUpdateFrequency": "4s",
    "serializeImagePulls": False,
    "resolvConf": RESOLVER_CONFIG,
    # The default is below /usr, which is not the node's own.
    "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    "clusterDomain": "cluster.local",
}


def resolver_config() -> Tree:
    """Replaces this machine's file, which may be a link into /run, where a node has its own files.

    A lab has no DNS: queries to loopback fail at once instead of waiting for an unreachable server.
    """
    return {RESOLVER_CONFIG: Asset(b"nameserver 127.0.0.1\n")}


def containerd_config(cni_plugins: str) -> Tree:
    text = f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[debug]
  level = "warn"

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # The lab may not lower oom_score_adj.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_plugins}"
    conf_dir = "/etc/cni/net.d"
"""
    return {CONTAINERD_CONFIG: Asset(text.encode())}


def cni_config(node: LabNode) -> Tree:
    """Returns the CNI configuration: pods on a Linux bridge, with addresses of the node's subnets."""
    ranges = [[{"subnet": str(subnet)}] for subnet in node.pod_subnets]
    routes = [{"dst": "0.0.0.0/0" if subnet.version == 4 else "::/0"} for subnet in node.pod_subnets]
    ipam = {"type": "host-local", "ranges": ranges, "routes": routes}
    document = {
        "cniVersion": "0.4.0",
        "name": "lab",
        "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
        ],
    }
    return {CNI_CONFIG: Asset(to_json(document))}


def kubelet_config(node: LabNode, *, standalone: bool) -> Tree:
    """Returns the kubelet's configuration; standalone means static pods only, without an API server."""
    config: dict[str, Any] = {
        **KUBELET_SETTINGS,
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "staticPodPath": STATIC_PODS,
        "port": KUBELET_PORT,
        "address": str(node.address),
        "healthzBindAddress": "127.0.0.1",
        "authentication": _authentication(standalone),
        "authorization": {"mode": "AlwaysAllow" if standalone else "Webhook"},
        "enableServer": True,
    }
    if not standalone:
        config |= {"tlsCertFile": f"{PKI}/kubelet.crt", "tlsPrivateKeyFile": f"{PKI}/kubelet.key"}
    return {KUBELET_CONFIG: Asset(to_yaml(config))}


def kubelet_arguments(node: LabNode, *, standalone: bool) -> list[str]:
    arguments = [
        f"--config={KUBELET_CONFIG}",
        "--root-dir=/var/lib/kubelet",
        f"--hostname-override={node.name}",
        f"--node-ip={','.join(map(str, node.addresses))}",
        "--v=0",
    ]
    return arguments if standalone else [*arguments, f"--kubeconfig={KUBECONFIGS}/kubelet.conf"]


def _authentication(standalone: bool) -> Mapping[str, Any]:
    if standalone:
        return {"anonymous": {"enabled": False}, "webhook": {"enabled": False}}
    return {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": True},
        "x509": {"clientCAFile": f"{PKI}/ca.crt"},
    }


def to_json(document: object) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
