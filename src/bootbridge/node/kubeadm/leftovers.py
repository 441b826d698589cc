"""Finds and removes the files that kubeadm and tickets leave on a machine.

`kubeadm reset` is best effort: without an etcd manifest it does not find etcd's data, and without a container
runtime it stops before it deletes files. A second `kubeadm join` would then fail, or start with another
cluster's etcd data. So the same directories are cleaned again after it.
"""

from __future__ import annotations

from typing import Final

from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.node import node_paths

# Each of these alone means that kubeadm has run or a ticket was written. CA files are not listed, since a
# machine image may contain them: those of an init come with apiserver.crt, those of a ticket after SERVING.
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
    # Not ETCD_DATA itself, which may be a mount point with a lost+found directory.
    f"{node_paths.ETCD_DATA}/member",
)
# The kubelet's client certificates; each file name contains a date.
_KUBELET_CREDENTIALS: Final = f"{node_paths.KUBELET_PKI}/kubelet-client-"
# CA files, kubelet credentials, and static pods, which kubeadm's preflight rejects.
_EMPTIED: Final = (node_paths.PKI, node_paths.KUBELET_PKI, node_paths.MANIFESTS)


def find_traces(host: Host) -> list[str]:
    """Returns the paths which show that kubeadm has run; a static pod of the machine image does not."""
    credentials = [
        path for path in _children(host, node_paths.KUBELET_PKI) if path.startswith(_KUBELET_CREDENTIALS)
    ]
    return [*filter(host.exists, _TRACES), *credentials]


def remove_all(host: Host) -> None:
    """Removes the files that `kubeadm reset` may have left; keeps the directories.

    Continues after an error and raises OperatorError with all of them at the end.
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
