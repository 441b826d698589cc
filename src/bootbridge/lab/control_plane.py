"""The control plane of a lab as static pods.

The bootstrap kube-apiserver is configured as OpenShift's is: a KubeAPIServerConfig, an override merged into
it, and flags made of the result. The permanent one is the same without the override.
"""

from __future__ import annotations

from typing import Any

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.bootstrap.render import egress_selector, kasconfig
from bootbridge.common.files import Asset, Tree
from bootbridge.common.yaml_text import to_yaml
from bootbridge.lab.credentials import APISERVER_PORT, KUBECONFIGS, PKI
from bootbridge.lab.layout import LabNode, Layout
from bootbridge.lab.node_runtime import STATIC_PODS

IMAGE = "localhost/kubernetes:lab"
CONFIG_ON_HOST = "/etc/kubernetes/bootstrap-configs"
CONFIG_SEEN_BY_APISERVER = "/etc/kubernetes/config"
ADMISSION_CONFIG = "admission.yaml"
ETCD_PORT = 2379
BASE_CONFIG = "kube-apiserver-config.yaml"
# A kube-apiserver waits for all open watches until its grace period ends; a lab wants a fast restart.
GRACE_SECONDS = 1


def base_config(node: LabNode, layout: Layout) -> dict[str, Any]:
    """Returns the KubeAPIServerConfig without the egress selector."""
    services = ",".join(map(str, layout.networks.service))
    arguments = {
        "advertise-address": [str(node.address)],
        "allow-privileged": ["true"],
        "anonymous-auth": ["false"],
        "authorization-mode": ["Node", "RBAC"],
        "client-ca-file": [f"{PKI}/ca.crt"],
        "enable-admission-plugins": ["NodeRestriction"],
        # Services resolve to endpoints, so that the pod address of a webhook is dialled.
        "enable-aggregator-routing": ["true"],
        "endpoint-reconciler-type": ["lease"],
        "etcd-servers": [_etcd_url(node, layout)],
        "kubelet-certificate-authority": [f"{PKI}/ca.crt"],
        "kubelet-client-certificate": [f"{PKI}/apiserver-kubelet-client.crt"],
        "kubelet-client-key": [f"{PKI}/apiserver-kubelet-client.key"],
        "kubelet-preferred-address-types": ["InternalIP"],
        "proxy-client-cert-file": [f"{PKI}/front-proxy-client.crt"],
        "proxy-client-key-file": [f"{PKI}/front-proxy-client.key"],
        "requestheader-allowed-names": ["front-proxy"],
        "requestheader-client-ca-file": [f"{PKI}/front-proxy-ca.crt"],
        "requestheader-extra-headers-prefix": ["X-Remote-Extra-"],
        "requestheader-group-headers": ["X-Remote-Group"],
        "requestheader-username-headers": ["X-Remote-User"],
        "service-account-issuer": ["https://kubernetes.default.svc"],
        "service-account-signing-key-file": [f"{PKI}/service-accounts.key"],
        "tls-cert-file": [f"{PKI}/apiserver.crt"],
        "tls-private-key-file": [f"{PKI}/apiserver.key"],
        "v": ["2"],
    }
    return {
        "apiVersion": "kubecontrolplane.config.openshift.io/v1",
        "kind": "KubeAPIServerConfig",
        "apiServerArguments": arguments,
        "servicesSubnet": services,
        "servingInfo": {
            "bindAddress": f"{any_address(layout)}:{APISERVER_PORT}",
            "minTLSVersion": "VersionTLS12",
        },
        "serviceAccountPublicKeyFiles": [f"{PKI}/service-accounts.crt"],
    }


def apiserver_flags(base: dict[str, Any], override: dict[str, Any] | None) -> list[str]:
    layers = [kasconfig.ConfigFile(BASE_CONFIG, to_yaml(base))]
    if override is not None:
        layers.append(kasconfig.ConfigFile("override", to_yaml(override)))
    merged = kasconfig.merge(*layers)
    merged["apiServerArguments"].setdefault(
        "admission-control-config-file", [f"{CONFIG_SEEN_BY_APISERVER}/{ADMISSION_CONFIG}"]
    )
    return [flag for flag in kasconfig.flags(merged) if not flag.endswith("=")]


def bootstrap_files(layout: Layout, plan: Plan | None) -> Tree:
    """Returns the static pods of the bootstrap node; with a plan, its API server uses the tunnel."""
    node = layout.bootstrap
    override = egress_selector.config_override(plan) if plan else None
    return _tree(node, layout, apiserver_flags(base_config(node, layout), override))


def permanent_apiserver_files(layout: Layout, node: LabNode) -> Tree:
    """Returns the static pod of an API server on a cluster node, without an egress selector."""
    return _tree(node, layout, apiserver_flags(base_config(node, layout), None), apiserver_only=True)


def _tree(node: LabNode, layout: Layout, flags: list[str], *, apiserver_only: bool = False) -> Tree:
    admission = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": []}
    tree = {
        f"{CONFIG_ON_HOST}/{ADMISSION_CONFIG}": Asset(to_yaml(admission)),
        f"{STATIC_PODS}/kube-apiserver.yaml": Asset(to_yaml(_apiserver_pod(flags)), 0o600),
    }
    if not apiserver_only:
        tree |= {
            f"{STATIC_PODS}/kube-controller-manager.yaml": Asset(
                to_yaml(_controller_manager_pod(layout)), 0o600
            ),
            f"{STATIC_PODS}/kube-scheduler.yaml": Asset(to_yaml(_scheduler_pod()), 0o600),
        }
    return tree


def _apiserver_pod(flags: list[str]) -> dict[str, Any]:
    probe = {"scheme": "HTTPS", "host": "127.0.0.1", "port": APISERVER_PORT}
    volumes = {PKI: PKI, CONFIG_ON_HOST: CONFIG_SEEN_BY_APISERVER}
    pod = _pod("kube-apiserver", ["/usr/bin/kube-apiserver", *flags], volumes)
    # A TCP probe: anonymous HTTP requests are rejected.
    pod["spec"]["containers"][0]["livenessProbe"] = {
        "tcpSocket": {"host": probe["host"], "port": probe["port"]},
        "initialDelaySeconds": 20,
        "periodSeconds": 10,
        "failureThreshold": 6,
    }
    return pod


def _controller_manager_pod(layout: Layout) -> dict[str, Any]:
    kubeconfig = f"{KUBECONFIGS}/controller-manager.conf"
    networks = layout.networks
    command = [
        "/usr/bin/kube-controller-manager",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={PKI}/service-accounts.key",
        f"--root-ca-file={PKI}/ca.crt",
        f"--cluster-cidr={','.join(str(network.cidr) for network in networks.cluster)}",
        f"--service-cluster-ip-range={','.join(map(str, networks.service))}",
        # The lab assigns the pod subnets itself.
        "--allocate-node-cidrs=false",
        "--node-monitor-grace-period=20s",
    ]
    return _pod("kube-controller-manager", command, {PKI: PKI, KUBECONFIGS: KUBECONFIGS})


def _scheduler_pod() -> dict[str, Any]:
    kubeconfig = f"{KUBECONFIGS}/scheduler.conf"
    command = [
        "/usr/bin/kube-scheduler",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]
    return _pod("kube-scheduler", command, {KUBECONFIGS: KUBECONFIGS})


def _pod(name: str, command: list[str], volumes: dict[str, str]) -> dict[str, Any]:
    """Returns a static pod on the host network; `volumes` maps host paths to read-only mount paths."""
    names = {path: f"v{number}" for number, path in enumerate(volumes)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "labels": {"component": name}},
        "spec": {
            "hostNetwork": True,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "priorityClassName": "system-node-critical",
            "priority": 2000001000,
            "containers": [
                {
                    "name": name,
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": command,
                    "volumeMounts": [
                        {"name": names[path], "mountPath": seen, "readOnly": True}
                        for path, seen in volumes.items()
                    ],
                }
            ],
            "volumes": [
                {"name": names[path], "hostPath": {"path": path, "type": "Directory"}} for path in volumes
            ],
        },
    }


def _etcd_url(node: LabNode, layout: Layout) -> str:
    """Returns etcd's URL: loopback on its own node, because that node's address may change."""
    host = "127.0.0.1" if node == layout.bootstrap else bracketed(str(layout.bootstrap.address))
    return f"http://{host}:{ETCD_PORT}"


def any_address(layout: Layout) -> str:
    """Returns the wildcard address to listen on; the machine may have no IPv6."""
    return "0.0.0.0" if layout.families == "ipv4" else "[::]"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
