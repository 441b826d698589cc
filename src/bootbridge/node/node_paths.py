"""File locations on a node. kubeadm's own paths are its defaults, as other tools expect them there."""

from __future__ import annotations

from typing import Final

from bootbridge.join_api import kubeadm_defaults

KUBERNETES: Final = "/etc/kubernetes"
PKI: Final = kubeadm_defaults.PKI
MANIFESTS: Final = f"{KUBERNETES}/manifests"
# Its group has its permissions from RBAC; super-admin.conf bypasses RBAC and stays on the node.
ADMIN_KUBECONFIG: Final = f"{KUBERNETES}/admin.conf"
KUBELET_KUBECONFIG: Final = f"{KUBERNETES}/kubelet.conf"
BOOTSTRAP_KUBECONFIG: Final = f"{KUBERNETES}/bootstrap-kubelet.conf"

KUBELET: Final = "/var/lib/kubelet"
KUBELET_CONFIG: Final = f"{KUBELET}/config.yaml"
KUBELET_PKI: Final = f"{KUBELET}/pki"
# The kubelet's certificate and key in one file: with two, a crash or a reader could get a mismatched pair.
SERVING: Final = f"{KUBELET_PKI}/bootbridge-serving.pem"
ETCD_DATA: Final = "/var/lib/etcd"

AUDIT_POLICY: Final = f"{KUBERNETES}/bootbridge-audit-policy.yaml"
AUDIT_LOGS: Final = "/var/log/kubernetes/audit"

# On tmpfs and readable by root only: a join's configuration contains its token.
RUN: Final = "/run/bootbridge-node"
CONFIGURATION: Final = f"{RUN}/kubeadm.yaml"
# Patches for this machine's static pods; kubeadm does not store them in the cluster.
PATCHES: Final = f"{RUN}/kubeadm-patches"

API_PORT: Final = kubeadm_defaults.API_PORT
