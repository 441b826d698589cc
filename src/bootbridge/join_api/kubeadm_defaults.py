"""kubeadm's defaults that instances and the join service share."""

from __future__ import annotations

from typing import Final

PKI: Final = "/etc/kubernetes/pki"
API_PORT: Final = 6443

# What an additional control plane needs, below PKI. Nothing else is ever written there.
CONTROL_PLANE_FILES: Final = (
    "ca.crt",
    "ca.key",
    "sa.pub",
    "sa.key",
    "front-proxy-ca.crt",
    "front-proxy-ca.key",
    "etcd/ca.crt",
    "etcd/ca.key",
)
