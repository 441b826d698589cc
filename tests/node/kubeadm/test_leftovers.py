"""Traces of kubeadm are found and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.node import node_paths
from bootbridge.node.kubeadm import leftovers


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def put(host: Host, path: str) -> None:
    host.make_directory(path.rpartition("/")[0])
    host.write(path, Asset(b"x"))


@pytest.mark.parametrize(
    "trace",
    [
        "/etc/kubernetes/bootstrap-kubelet.conf",
        "/etc/kubernetes/kubelet.conf",
        "/etc/kubernetes/admin.conf",
        "/var/lib/kubelet/config.yaml",
        "/var/lib/kubelet/kubeadm-flags.env",
        "/etc/kubernetes/manifests/etcd.yaml",
        "/var/lib/etcd/member/snap/db",
        # An authority alone may be an operator's own; what it signed is an init's.
        "/etc/kubernetes/pki/apiserver.crt",
        node_paths.SERVING,
        "/var/lib/kubelet/pki/kubelet-client-2026-11-16-12-00-00.pem",
    ],
)
def test_any_single_trace_of_kubeadm_is_found(host: Host, trace: str) -> None:
    assert leftovers.find_traces(host) == []
    put(host, trace)
    assert leftovers.find_traces(host)
    leftovers.remove_all(host)
    assert leftovers.find_traces(host) == []


def test_files_of_a_machine_image_are_not_traces(host: Host) -> None:
    for path in (
        f"{node_paths.PKI}/ca.crt",
        f"{node_paths.PKI}/ca.key",
        f"{node_paths.MANIFESTS}/virtual-address.yaml",
        f"{node_paths.ETCD_DATA}/lost+found",
        "/etc/cni/net.d/10.conf",
    ):
        put(host, path)
    assert leftovers.find_traces(host) == []


def test_only_files_of_kubeadm_are_removed(host: Host) -> None:
    """Other programs use these directories too, and etcd data may be a mount point."""
    kept = (
        f"{node_paths.ETCD_DATA}/lost+found",
        "/etc/kubernetes/bootbridge/plan.json",
        node_paths.AUDIT_POLICY,
        "/etc/cni/net.d/10.conf",
        "/var/lib/kubelet/device-plugins/registry",
    )
    gone = (
        f"{node_paths.PKI}/ca.key",
        f"{node_paths.MANIFESTS}/etcd.yaml",
        f"{node_paths.ETCD_DATA}/member/wal/0",
        node_paths.SERVING,
        "/var/lib/kubelet/pki/kubelet-client-current.pem",
    )
    for path in (*kept, *gone, node_paths.CONFIGURATION):
        put(host, path)
    leftovers.remove_all(host)
    assert all(map(host.exists, kept))
    assert not any(map(host.exists, (*gone, node_paths.CONFIGURATION)))
    assert all(map(host.exists, (node_paths.PKI, node_paths.MANIFESTS, node_paths.ETCD_DATA)))


def test_links_are_removed_and_not_followed(host: Host, tmp_path: Path) -> None:
    put(host, "/elsewhere/precious")
    host.make_directory(node_paths.MANIFESTS)
    host.path(f"{node_paths.MANIFESTS}/link").symlink_to(tmp_path / "elsewhere")
    leftovers.remove_all(host)
    assert host.exists("/elsewhere/precious")
    assert leftovers.find_traces(host) == []


def test_a_dangling_link_to_kubelet_credentials_is_a_trace(host: Host) -> None:
    host.make_directory(node_paths.KUBELET_PKI)
    link = host.path(f"{node_paths.KUBELET_PKI}/kubelet-client-current.pem")
    link.symlink_to("kubelet-client-of-another-cluster.pem")
    assert leftovers.find_traces(host)
    leftovers.remove_all(host)
    assert leftovers.find_traces(host) == []


def test_removal_continues_after_an_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn, others = (
        f"{node_paths.PKI}/ca.crt",
        (f"{node_paths.PKI}/ca.key", f"{node_paths.MANIFESTS}/etcd.yaml"),
    )
    for path in (stubborn, *others):
        put(host, path)
    remove = host.remove

    def resist(path: str) -> None:
        if path == stubborn:
            raise OperatorError(f"cannot remove {path}")
        remove(path)

    monkeypatch.setattr(host, "remove", resist)
    with pytest.raises(OperatorError, match=r"cannot remove /etc/kubernetes/pki/ca\.crt"):
        leftovers.remove_all(host)
    assert not any(map(host.exists, others))
