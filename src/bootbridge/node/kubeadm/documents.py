"""Generates kubeadm's v1beta4 documents: for an init from the cluster spec, for a join from the ticket.

One function generates the settings of a single node for both, so that the first node does not differ from
later ones. Settings of all nodes are in the KubeletConfiguration and the ClusterConfiguration, which kubeadm
stores in the cluster and applies to every node that joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bootbridge.bootstrap.render.kubeadm import V1BETA4
from bootbridge.common.yaml_text import to_yaml
from bootbridge.errors import OperatorError
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.instance import Instance, IPAddress, node_name
from bootbridge.join_api.messages import Ticket
from bootbridge.join_api.node_addresses import node_addresses
from bootbridge.node import node_paths

Document = dict[str, Any]

# These phases run separately before, since the kubelet's certificate is signed in between. skipPhases applies
# to `kubeadm init`, not to `kubeadm init phase`.
_RUN_BEFORE_INIT = ("preflight", "certs")
# It would print a token.
_NEVER_RUN = ("show-join-command",)
# The ticket contains the control plane files; kubeadm need not read them from a Secret.
_FILES_COME_WITH_TICKET = ("control-plane-prepare/download-certs",)
# kubeadm always creates a token. This one is unused and expires before it could be guessed.
_UNUSED_TOKEN_TTL = "1m0s"
# RUN_SECONDS in run.py is larger than their sum.
_TIMEOUTS = {
    "controlPlaneComponentHealthCheck": "4m0s",
    "kubeletHealthCheck": "4m0s",
    "tlsBootstrap": "2m0s",
    "discovery": "2m0s",
}
_ADDONS = {"coredns": "dns", "kube-proxy": "proxy"}


def init_documents(spec: ClusterSpec, instance: Instance, *, patches: str = "") -> tuple[Document, ...]:
    """Returns the documents of the first node; `patches` is a directory of patches for its static pods."""
    addresses = node_addresses(instance.addresses, spec.families)
    initial: Document = {
        "apiVersion": V1BETA4,
        "kind": "InitConfiguration",
        "bootstrapTokens": [{"description": "unused", "ttl": _UNUSED_TOKEN_TTL}],
        "nodeRegistration": _registration(
            node_name(instance.name),
            addresses,
            instance.provider_id,
            spec.cri_socket,
            spec.ignore_preflight_errors,
        ),
        "localAPIEndpoint": _local_endpoint(addresses),
        "skipPhases": [*_RUN_BEFORE_INIT, *_NEVER_RUN, *(f"addon/{name}" for name in spec.without_addons)],
        "timeouts": dict(_TIMEOUTS),
    }
    if patches:
        initial["patches"] = {"directory": patches}
    return initial, _cluster(spec, addresses), _kubelet(spec)


def join_documents(ticket: Ticket) -> tuple[Document, ...]:
    """Returns the documents of a further node; every value comes from the ticket."""
    addresses = node_addresses(ticket.addresses)
    joining: Document = {
        "apiVersion": V1BETA4,
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": ticket.api_server_endpoint,
                "token": ticket.token,
                "caCertHashes": list(_pins(ticket)),
            }
        },
        "nodeRegistration": _registration(
            node_name(ticket.node_name),
            addresses,
            ticket.provider_id,
            ticket.cri_socket,
            ticket.ignore_preflight_errors,
        ),
        "timeouts": dict(_TIMEOUTS),
    }
    if ticket.control_plane:
        joining["controlPlane"] = {"localAPIEndpoint": _local_endpoint(addresses)}
        joining["skipPhases"] = list(_FILES_COME_WITH_TICKET)
    return (joining,)


def dump(documents: Iterable[Document]) -> bytes:
    return b"---\n".join(to_yaml(document) for document in documents)


def audit_policy() -> Document:
    """Logs requests without bodies, which may contain Secrets."""
    return {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}


def _pins(ticket: Ticket) -> tuple[str, ...]:
    """Required: without a pin, kubeadm would trust any API server that answers."""
    if not ticket.ca_certificate_hashes:
        raise OperatorError("required field missing", subject="caCertificateHashes of the ticket")
    return ticket.ca_certificate_hashes


def _registration(
    name: str,
    addresses: tuple[IPAddress, ...],
    provider_id: str,
    cri_socket: str,
    ignored: Sequence[str],
) -> Document:
    flags = {"node-ip": ",".join(map(str, addresses))}
    if provider_id:
        flags["provider-id"] = provider_id
    registration: Document = {"name": name, "criSocket": cri_socket, "kubeletExtraArgs": _arguments(flags)}
    if ignored:
        registration["ignorePreflightErrors"] = list(ignored)
    return registration


def _local_endpoint(addresses: tuple[IPAddress, ...]) -> Document:
    return {"advertiseAddress": str(addresses[0]), "bindPort": node_paths.API_PORT}


def _cluster(spec: ClusterSpec, addresses: tuple[IPAddress, ...]) -> Document:
    networking = {
        "serviceSubnet": ",".join(spec.service_subnets),
        "podSubnet": ",".join(spec.pod_subnets),
    }
    document: Document = {
        "apiVersion": V1BETA4,
        "kind": "ClusterConfiguration",
        "clusterName": spec.name,
        "kubernetesVersion": spec.kubernetes_version,
        # Always set: without it a second control plane could not join.
        "controlPlaneEndpoint": spec.control_plane_endpoint
        or _host_and_port(addresses[0], node_paths.API_PORT),
        # Signing takes a tenth of the time of RSA, and the join service signs a certificate for every ticket.
        "encryptionAlgorithm": "ECDSA-P256",
        "networking": {key: value for key, value in networking.items() if value},
        "apiServer": _api_server(spec, addresses),
        "controllerManager": {
            "extraArgs": _arguments({"profiling": "false", "terminated-pod-gc-threshold": "1000"})
        },
        "scheduler": {"extraArgs": _arguments({"profiling": "false"})},
    }
    if spec.image_repository:
        document["imageRepository"] = spec.image_repository
    if spec.etcd_image_tag:
        document["etcd"] = {"local": {"imageTag": spec.etcd_image_tag, "dataDir": node_paths.ETCD_DATA}}
    for addon in spec.without_addons:
        # skipPhases applies to this init only; this field applies to later upgrades.
        document[_ADDONS[addon]] = {"disabled": True}
    return document


def _api_server(spec: ClusterSpec, addresses: tuple[IPAddress, ...]) -> Document:
    loopbacks = ["127.0.0.1" if address.version == 4 else "::1" for address in addresses]
    names = ["localhost", *loopbacks, *map(str, addresses), *spec.api_server_sans]
    flags = {
        "audit-log-maxage": "30",
        "audit-log-maxbackup": "10",
        "audit-log-maxsize": "100",
        "audit-log-path": f"{node_paths.AUDIT_LOGS}/audit.log",
        "audit-policy-file": node_paths.AUDIT_POLICY,
        # The cluster CA signs every kubelet's serving certificate, so the API server can verify it.
        "kubelet-certificate-authority": f"{node_paths.PKI}/ca.crt",
        "profiling": "false",
    }
    return {
        "certSANs": list(dict.fromkeys(filter(None, names))),
        "extraArgs": _arguments(flags),
        "extraVolumes": [
            _volume("audit-logs", node_paths.AUDIT_LOGS, "DirectoryOrCreate"),
            {**_volume("audit-policy", node_paths.AUDIT_POLICY, "File"), "readOnly": True},
        ],
    }


def _volume(name: str, path: str, kind: str) -> Document:
    return {"name": name, "hostPath": path, "mountPath": path, "pathType": kind}


def _kubelet(spec: ClusterSpec) -> Document:
    return {
        "tlsMinVersion": "VersionTLS13",
        **spec.kubelet,
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # One PEM file with both; the kubelet picks the blocks it needs.
        "tlsCertFile": node_paths.SERVING,
        "tlsPrivateKeyFile": node_paths.SERVING,
    }


def _arguments(flags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in flags.items()]


def _host_and_port(address: IPAddress, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
