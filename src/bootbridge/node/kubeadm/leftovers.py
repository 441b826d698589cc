"""What kubeadm leaves on a machine: how half a node is recognised, and how it is made blank again.

`kubeadm reset` is best effort: without an etcd manifest it cannot find etcd's data, without a runtime that
answers it gives up before the files. A second `kubeadm join` on what is left would refuse, or worse, go on
with another cluster's etcd. So the same few directories are looked at again afterwards.
"""

from __future__ import annotations

from typing import Final

from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.join_api import node_paths

# What kubeadm or a ticket of ours brings, each of which alone means that somebody was at work. Not the
# authorities' files, which an image may bring: beside those of an init lies what they signed, and a ticket's
# come after the kubelet's serving certificate.
_TRACES: Final = (
    f"{node_paths.PKI}/apiserver.crt",
    node_paths.SERVING,
    node_paths.BOOTSTRAP_KUBECONFIG,
    node_paths.KUBELET_KUBECONFIG,
    node_paths.ADMIN_KUBECONFIG,
    f"{node_paths.KUBERNETES}/super-admin.conf",
    f"{node_paths.KUBERNETES}/controller-manager.conf",
    f"{node_paths.KUBERNETES}/scheduler.conf",
    node_paths.KUBELET_CONFIG,
    f"{node_paths.KUBELET}/kubeadm-flags.env",
    f"{node_paths.KUBELET}/instance-config.yaml",
    f"{node_paths.MANIFESTS}/etcd.yaml",
    f"{node_paths.MANIFESTS}/kube-apiserver.yaml",
    f"{node_paths.MANIFESTS}/kube-controller-manager.yaml",
    f"{node_paths.MANIFESTS}/kube-scheduler.yaml",
    # Beside it may lie what a file system of its own brings along.
    f"{node_paths.ETCD_DATA}/member",
)
# Where the kubelet keeps what the cluster gave it; each file has the day of its making in its name.
_KUBELET_CREDENTIALS: Final = f"{node_paths.KUBELET_PKI}/kubelet-client-"
# Of another attempt: its authorities, the kubelet's credentials, and its pods, which kubeadm's preflight does
# not want to see.
_EMPTIED: Final = (node_paths.PKI, node_paths.KUBELET_PKI, node_paths.MANIFESTS)


def find_traces(host: Host) -> list[str]:
    """What shows that kubeadm was at work here; a static pod that an image brings does not."""
    credentials = [
        path for path in _children(host, node_paths.KUBELET_PKI) if path.startswith(_KUBELET_CREDENTIALS)
    ]
    return [*filter(host.exists, _TRACES), *credentials]


def remove_all(host: Host) -> None:
    """Remove what a reset may have left, and nothing else; the directories themselves stay.

    What cannot be removed keeps nothing else from being removed; it is told afterwards.
    """
    failures: list[OperatorError] = []
    below = [child for directory in _EMPTIED for child in _children(host, directory)]
    for path in (*below, *_TRACES, node_paths.CONFIGURATION):
        try:
            _remove(host, path)
        except OperatorError as error:
            failures.append(error)
    if failures:
        raise OperatorError("; ".join(map(str, failures)))


def _children(host: Host, directory: str) -> list[str]:
    path = host.path(directory)
    return [f"{directory}/{child.name}" for child in sorted(path.iterdir())] if path.is_dir() else []


def _remove(host: Host, path: str) -> None:
    if host.path(path).is_dir():
        host.remove_tree(path)
    else:
        host.remove(path)
