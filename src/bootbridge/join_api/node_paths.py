"""Where things lie on a node. kubeadm's own paths are its defaults: other tools look for them there."""

from __future__ import annotations

from typing import Final

KUBERNETES: Final = "/etc/kubernetes"
PKI: Final = f"{KUBERNETES}/pki"
MANIFESTS: Final = f"{KUBERNETES}/manifests"
# Its group has its rights from RBAC, and can lose them; super-admin.conf is above RBAC and stays on the node.
ADMIN_KUBECONFIG: Final = f"{KUBERNETES}/admin.conf"
KUBELET_KUBECONFIG: Final = f"{KUBERNETES}/kubelet.conf"
BOOTSTRAP_KUBECONFIG: Final = f"{KUBERNETES}/bootstrap-kubelet.conf"

KUBELET: Final = "/var/lib/kubelet"
KUBELET_CONFIG: Final = f"{KUBELET}/config.yaml"
KUBELET_PKI: Final = f"{KUBELET}/pki"
# The kubelet's certificate and its key in one file: of two, a crash or a reader could meet half of each pair.
SERVING: Final = f"{KUBELET_PKI}/bootbridge-serving.pem"
ETCD_DATA: Final = "/var/lib/etcd"

AUDIT_POLICY: Final = f"{KUBERNETES}/bootbridge-audit-policy.yaml"
AUDIT_LOGS: Final = "/var/log/kubernetes/audit"

# Of this boot, and of root alone: a join's configuration carries its token.
RUN: Final = "/run/bootbridge-node"
CONFIGURATION: Final = f"{RUN}/kubeadm.yaml"
# Patches for this machine's static pods alone; kubeadm stores none of them in the cluster.
PATCHES: Final = f"{RUN}/kubeadm-patches"

API_PORT: Final = 6443
