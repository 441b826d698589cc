"""Issues the certificates and kubeconfigs of a lab cluster, as files for each node."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import timedelta

from bootbridge.common.files import Asset, Tree
from bootbridge.lab.layout import LabNode, Layout
from bootbridge.trust.authority import Authority, Certificate

PKI = "/etc/kubernetes/pki"
KUBECONFIGS = "/etc/kubernetes/kubeconfigs"
ADMIN_KUBECONFIG = "/etc/kubernetes/admin.conf"
APISERVER_PORT = 6443
VALIDITY = timedelta(days=7)


@dataclass(frozen=True)
class Credentials:
    """The authorities of one cluster; their keys are never written, because all nodes are created by `up`."""

    cluster: Authority
    front_proxy: Authority
    service_accounts: Certificate

    @classmethod
    def create(cls) -> Credentials:
        cluster = Authority.create("lab", validity=VALIDITY)
        # Only its key pair is used: to sign and verify service account tokens.
        service_accounts = cluster.issue_client("service-accounts", validity=VALIDITY)
        return cls(cluster, Authority.create("lab-front-proxy", validity=VALIDITY), service_accounts)

    def control_plane(self, node: LabNode, layout: Layout) -> Tree:
        """Returns the files of a node with a kube-apiserver, kube-controller-manager and kube-scheduler."""
        names = [node.name, "localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default.svc"]
        names += [str(address) for address in (*node.addresses, *layout.apiserver_service_ips)]
        serving = self.cluster.issue_server(names, common_name="kube-apiserver")
        to_kubelet = self.cluster.issue_client("kube-apiserver", organisations=["system:masters"])
        return {
            f"{PKI}/ca.crt": Asset(self.cluster.cert_pem),
            f"{PKI}/front-proxy-ca.crt": Asset(self.front_proxy.cert_pem),
            **_pair("apiserver", serving),
            **_pair("apiserver-kubelet-client", to_kubelet),
            **_pair("front-proxy-client", self.front_proxy.issue_client("front-proxy")),
            **_pair("service-accounts", self.service_accounts),
            ADMIN_KUBECONFIG: self.kubeconfig(node, "kubernetes-admin", "system:masters"),
            f"{KUBECONFIGS}/controller-manager.conf": self.kubeconfig(node, "system:kube-controller-manager"),
            f"{KUBECONFIGS}/scheduler.conf": self.kubeconfig(node, "system:kube-scheduler"),
        }

    def kubelet(self, node: LabNode, apiserver: LabNode) -> Tree:
        """Returns the files of a node that joins."""
        names = [node.name, *map(str, node.addresses)]
        return {
            f"{PKI}/ca.crt": Asset(self.cluster.cert_pem),
            **_pair("kubelet", self.cluster.issue_server(names, common_name=f"system:node:{node.name}")),
            f"{KUBECONFIGS}/kubelet.conf": self.kubeconfig(
                apiserver, f"system:node:{node.name}", "system:nodes"
            ),
        }

    def kubeconfig(self, apiserver: LabNode, user: str, *groups: str) -> Asset:
        certificate = self.cluster.issue_client(user, organisations=groups)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {
                        "server": apiserver_url(apiserver),
                        "certificate-authority-data": _base64(self.cluster.cert_pem),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _base64(certificate.cert_pem),
                        "client-key-data": _base64(certificate.key_pem),
                    },
                }
            ],
        }
        return Asset(json.dumps(document, indent=1).encode(), 0o600)


def apiserver_url(node: LabNode) -> str:
    return f"https://{apiserver_endpoint(node)}"


def apiserver_endpoint(node: LabNode) -> str:
    host = f"[{node.address}]" if node.address.version == 6 else str(node.address)
    return f"{host}:{APISERVER_PORT}"


def _pair(name: str, certificate: Certificate) -> Tree:
    return {
        f"{PKI}/{name}.crt": Asset(certificate.cert_pem),
        f"{PKI}/{name}.key": Asset(certificate.key_pem, 0o600),
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
