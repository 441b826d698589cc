"""The manifests of a Konnectivity installation, as Kubernetes' own documentation has them.

https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/: the server is a static pod beside the
kube-apiserver and uses its certificate; agents are a DaemonSet and authenticate with a service account token.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from bootbridge.lab.control_plane import CONFIG_ON_HOST, CONFIG_SEEN_BY_APISERVER
from bootbridge.lab.credentials import ADMIN_KUBECONFIG, PKI
from bootbridge.lab.images import KONNECTIVITY_IMAGE, TUNNEL_IMAGE
from bootbridge.lab.node_runtime import STATIC_PODS

Manifest = dict[str, Any]

NAMESPACE = "kube-system"
ACCOUNT = "konnectivity-agent"
AUDIENCE = "system:konnectivity-server"
SOCKETS = "/etc/kubernetes/konnectivity-server"
IMAGES = {"Go": KONNECTIVITY_IMAGE, "ours": TUNNEL_IMAGE}
# Kubernetes' default is 30 s. An agent of Konnectivity always uses all of it, so a lab wants less.
AGENT_GRACE_SECONDS = 5
# Konnectivity's server never ends on its own in gRPC mode: it waits for the kube-apiserver's connections.
SERVER_GRACE_SECONDS = 5
# Ours exits on its own, before the kubelet would kill it.
OUR_AGENT_FLAGS = (f"--drain-timeout={AGENT_GRACE_SECONDS - 2}s",)


@dataclass(frozen=True)
class Tunnel:
    """One kube-apiserver, the server beside it and that server's agents."""

    protocol: str
    mode: str
    apiserver_port: int
    agent_port: int
    admin_port: int
    health_port: int
    # What distinguishes a second server, which runs beside the first.
    suffix: str = ""

    @property
    def server(self) -> str:
        return f"konnectivity-server-{self.mode}{self.suffix}"

    @property
    def agents(self) -> str:
        return f"konnectivity-agent-{self.mode}{self.suffix}"

    @property
    def apiserver(self) -> str:
        return f"kube-apiserver-{self.mode}"

    @property
    def server_manifest(self) -> str:
        return f"{STATIC_PODS}/{self.server}.yaml"

    @property
    def apiserver_manifest(self) -> str:
        return f"{STATIC_PODS}/{self.apiserver}.yaml"

    @property
    def socket(self) -> str:
        return f"{SOCKETS}/{self.server}.socket"

    @property
    def egress_file(self) -> str:
        return f"egress-{self.server}.yaml"


# Two kube-apiservers, one for each protocol, so that one lab has both at the same time.
GRPC = Tunnel("GRPC", "grpc", 6444, 8132, 8133, 8134)
HTTP_CONNECT = Tunnel("HTTPConnect", "http-connect", 6445, 8142, 8143, 8144)
TUNNELS = (GRPC, HTTP_CONNECT)


def server_pod(tunnel: Tunnel, program: str, revision: str) -> Manifest:
    """Returns the static pod of the server; a new revision makes the kubelet replace the pod."""
    probe = {"scheme": "HTTP", "host": "127.0.0.1", "port": tunnel.health_port, "path": "/healthz"}
    paths = {"pki": PKI, "kubeconfig": ADMIN_KUBECONFIG, "sockets": SOCKETS}
    container = {
        "name": "konnectivity-server",
        "image": IMAGES[program],
        "imagePullPolicy": "Never",
        "command": ["/usr/bin/proxy-server"],
        "args": [
            "--logtostderr=true",
            f"--uds-name={tunnel.socket}",
            "--delete-existing-uds-file",
            f"--cluster-cert={PKI}/apiserver.crt",
            f"--cluster-key={PKI}/apiserver.key",
            f"--mode={tunnel.mode}",
            "--server-port=0",
            f"--agent-port={tunnel.agent_port}",
            f"--admin-port={tunnel.admin_port}",
            f"--health-port={tunnel.health_port}",
            f"--agent-namespace={NAMESPACE}",
            f"--agent-service-account={ACCOUNT}",
            f"--kubeconfig={ADMIN_KUBECONFIG}",
            f"--authentication-audience={AUDIENCE}",
        ],
        "livenessProbe": {"httpGet": probe, "initialDelaySeconds": 30, "timeoutSeconds": 60},
        # The images' user is 65532, Konnectivity's as ours, and the kube-apiserver's key is root's.
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [
            {"name": name, "mountPath": path, "readOnly": name != "sockets"} for name, path in paths.items()
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": tunnel.server,
            "namespace": NAMESPACE,
            "labels": {"k8s-app": "konnectivity-server"},
            "annotations": {"revision": revision},
        },
        "spec": {
            "priorityClassName": "system-cluster-critical",
            "priority": 2000000000,
            "hostNetwork": True,
            "terminationGracePeriodSeconds": SERVER_GRACE_SECONDS,
            "containers": [container],
            "volumes": [
                {"name": "pki", "hostPath": {"path": PKI, "type": "Directory"}},
                {"name": "kubeconfig", "hostPath": {"path": ADMIN_KUBECONFIG, "type": "File"}},
                {"name": "sockets", "hostPath": {"path": SOCKETS, "type": "DirectoryOrCreate"}},
            ],
        },
    }


def agent_account() -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "namespace": NAMESPACE},
    }


def agent_daemon_set(tunnel: Tunnel, program: str, revision: str, server_address: str) -> Manifest:
    """Returns the agents; a new revision or another program starts a rolling update."""
    labels = {"k8s-app": tunnel.agents}
    tokens = "/var/run/secrets/tokens"
    token = {"path": "konnectivity-agent-token", "audience": AUDIENCE}
    container = {
        "name": "konnectivity-agent",
        "image": IMAGES[program],
        "imagePullPolicy": "Never",
        "command": ["/usr/bin/proxy-agent"],
        "args": [
            "--logtostderr=true",
            "--ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
            f"--proxy-server-host={server_address}",
            f"--proxy-server-port={tunnel.agent_port}",
            "--admin-server-port=8133",
            "--health-server-port=8134",
            f"--service-account-token-path={tokens}/konnectivity-agent-token",
            *(OUR_AGENT_FLAGS if program == "ours" else ()),
        ],
        "volumeMounts": [{"name": "konnectivity-agent-token", "mountPath": tokens}],
        "livenessProbe": {
            "httpGet": {"port": 8134, "path": "/healthz"},
            "initialDelaySeconds": 15,
            "timeoutSeconds": 15,
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": tunnel.agents, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"revision": revision}},
                "spec": {
                    "priorityClassName": "system-cluster-critical",
                    "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
                    "terminationGracePeriodSeconds": AGENT_GRACE_SECONDS,
                    "serviceAccountName": ACCOUNT,
                    "containers": [container],
                    "volumes": [
                        {
                            "name": "konnectivity-agent-token",
                            "projected": {"sources": [{"serviceAccountToken": token}]},
                        }
                    ],
                },
            },
        },
    }


def egress_selector(tunnel: Tunnel) -> Manifest:
    """Returns the kube-apiserver's configuration that names the server's socket."""
    transport = {"uds": {"udsName": tunnel.socket}}
    connection = {"proxyProtocol": tunnel.protocol, "transport": transport}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }


def egress_path(tunnel: Tunnel) -> str:
    """Returns the node's path of that file."""
    return f"{CONFIG_ON_HOST}/{tunnel.egress_file}"


def apiserver_pod(original: Manifest, tunnel: Tunnel) -> Manifest:
    """Returns the lab's kube-apiserver with an egress selector, on the tunnel's port."""
    pod = copy.deepcopy(original)
    pod["metadata"]["name"] = tunnel.apiserver
    container = pod["spec"]["containers"][0]
    changed = ("--secure-port=", "--egress-selector-config-file=")
    container["command"] = [
        *(word for word in container["command"] if not word.startswith(changed)),
        f"--secure-port={tunnel.apiserver_port}",
        f"--egress-selector-config-file={CONFIG_SEEN_BY_APISERVER}/{tunnel.egress_file}",
    ]
    container["livenessProbe"]["tcpSocket"]["port"] = tunnel.apiserver_port
    if not any(volume["name"] == "sockets" for volume in pod["spec"]["volumes"]):
        container["volumeMounts"].append({"name": "sockets", "mountPath": SOCKETS})
        directory = {"path": SOCKETS, "type": "DirectoryOrCreate"}
        pod["spec"]["volumes"].append({"name": "sockets", "hostPath": directory})
    return pod
