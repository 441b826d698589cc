"""Kubernetes manifests of the join service: ServiceAccount, RBAC, policy, secrets and DaemonSet.

**Permissions** are those that a ticket needs. In kube-system: create Secrets, since bootstrap tokens must be
there under random names, and RBAC cannot restrict `create` by name; read the measurement secret and watch the
policy, by name. In a namespace of its own: create and read name bindings (it cannot change one), and write
one Lease. In the cluster: read Nodes, and approve the CSRs of its tokens.

**It runs** on control planes, on the host network, as joining instances have no other; and as root without
capabilities, as root owns kubeadm's keys. A TPM is in a second container, `bootbridge tpm-helper`,
which has no network port and is privileged for a device; the join service reaches it by a unix socket. It
uses the API server of its own node: kube-proxy may not run yet.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Final

from bootbridge.join_api import kubeadm_defaults
from bootbridge.join_api.messages import JOIN_PORT
from bootbridge.join_api.policy import POLICY_KEY
from bootbridge.join_service.control_plane_lease import CONTROL_PLANE_LABEL, LEASE_NAME
from bootbridge.join_service.csr_approver import AUTO_APPROVE_BINDING, SIGNER
from bootbridge.join_service.measurement_secret import SECRET_NAME, MeasurementSecret
from bootbridge.join_service.name_bindings import STATE_NAMESPACE
from bootbridge.join_service.policy_watch import POLICY_NAME
from bootbridge.kube.pod_security import HARDENED

Manifest = dict[str, Any]

NAME: Final = "bootbridge-join-service"
# Bootstrap tokens must be in this namespace.
NAMESPACE: Final = "kube-system"
LABELS: Final = {"app": NAME, "app.kubernetes.io/managed-by": "bootbridge"}
HEALTH_PORT: Final = 9091
EVIDENCE_FOLDER: Final = "/etc/bootbridge/evidence"
EVIDENCE_FILE: Final = "issuer.json"
# Where the container with the TPM listens, in a volume that only the two containers share.
TPM_SOCKET: Final = "/run/bootbridge-tpm/tpm.sock"
_LOOPBACK: Final = "127.0.0.1"
# Root without capabilities: root owns kubeadm's keys.
# SELinux: ordinary containers may not read host directories.
_SECURITY: Final = {"runAsUser": 0, "runAsGroup": 0, **HARDENED, "seLinuxOptions": {"type": "spc_t"}}
_TPM_MOUNT: Final = {"name": "tpm-socket", "mountPath": "/run/bootbridge-tpm"}


@dataclass(frozen=True)
class JoinServiceDeployment:
    """What differs between clusters."""

    image: str
    policy: bytes = field(repr=False)  # as policy.with_cluster writes it
    measurement: MeasurementSecret
    command: tuple[str, ...] = ("/usr/bin/bootbridge", "join-service")
    port: int = JOIN_PORT
    api_server_port: int = kubeadm_defaults.API_PORT
    # The evidence that the service presents (trust/evidence/configuration.py); empty: none.
    evidence: bytes = field(default=b"", repr=False)
    # Host paths of files for the evidence.
    files: tuple[str, ...] = ()
    # The node's TPM, which only the helper opens: /dev/… or unix:PATH. The evidence names TPM_SOCKET.
    tpm: str = ""

    @property
    def tpm_path(self) -> str:
        return self.tpm.removeprefix("unix:")


def manifests(deployment: JoinServiceDeployment) -> list[Manifest]:
    """Returns them in the order in which they are applied."""
    return [
        state_namespace(),
        service_account(),
        *roles(),
        policy(deployment.policy),
        deployment.measurement.manifest(NAMESPACE),
        *([evidence(deployment.evidence)] if deployment.evidence else []),
        daemon_set(deployment),
    ]


def state_namespace() -> Manifest:
    """For name bindings and the Lease; no pod runs there."""
    security = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": STATE_NAMESPACE, "labels": {**LABELS, **security}},
    }


def service_account() -> Manifest:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(NAME)}


def roles() -> list[Manifest]:
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    in_cluster = {"name": NAME, "labels": LABELS}
    leases, certificates = "coordination.k8s.io", "certificates.k8s.io"
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": _metadata(NAME),
            "rules": [
                # Bootstrap tokens, which have random names.
                _rule("", "secrets", ["create"]),
                _rule("", "secrets", ["get"], SECRET_NAME),
                _rule("", "configmaps", ["list", "watch"], POLICY_NAME),
            ],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": _metadata(NAME, STATE_NAMESPACE),
            "rules": [
                _rule("", "configmaps", ["create", "get", "list", "watch"]),
                _rule(leases, "leases", ["create"]),
                _rule(leases, "leases", ["get", "update"], LEASE_NAME),
            ],
        },
        *(
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": _metadata(NAME, namespace),
                "roleRef": {"apiGroup": group, "kind": "Role", "name": NAME},
                "subjects": [subject],
            }
            for namespace in (NAMESPACE, STATE_NAMESPACE)
        ),
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": in_cluster,
            "rules": [
                _rule("", "nodes", ["get"]),
                _rule(certificates, "certificatesigningrequests", ["get", "list", "watch"]),
                _rule(certificates, "certificatesigningrequests/approval", ["update"]),
                _rule(certificates, "signers", ["approve"], SIGNER),
                _rule(group, "clusterrolebindings", ["get"], AUTO_APPROVE_BINDING.name),
            ],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": in_cluster,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": NAME},
            "subjects": [subject],
        },
    ]


def policy(document: bytes) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(POLICY_NAME),
        "data": {POLICY_KEY: document.decode()},
    }


def evidence(document: bytes) -> Manifest:
    """A Secret, as it may contain a token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(f"{NAME}-evidence"),
        "type": "Opaque",
        "data": {EVIDENCE_FILE: base64.b64encode(document).decode()},
    }


def daemon_set(deployment: JoinServiceDeployment) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(NAME),
        "spec": {
            "selector": {"matchLabels": {"app": NAME}},
            "template": {"metadata": {"labels": LABELS}, "spec": _pod(deployment)},
        },
    }


def _pod(deployment: JoinServiceDeployment) -> Manifest:
    volumes, mounts = _volumes(deployment)
    image = {"image": deployment.image, "imagePullPolicy": "IfNotPresent"}
    return {
        "serviceAccountName": NAME,
        "hostNetwork": True,
        "dnsPolicy": "Default",
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {CONTROL_PLANE_LABEL: ""},
        "tolerations": [{"operator": "Exists"}],
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": NAME,
                **image,
                "command": list(deployment.command),
                "args": _arguments(deployment),
                "env": [
                    {
                        "name": "KUBERNETES_SERVICE_HOST",
                        "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}},
                    },
                    {"name": "KUBERNETES_SERVICE_PORT", "value": str(deployment.api_server_port)},
                ],
                "livenessProbe": _probe("/healthz", failures=3),
                "readinessProbe": _probe("/readyz", failures=1),
                "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
                "securityContext": _SECURITY,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": mounts,
            },
            *([{**_tpm_helper(deployment), **image}] if deployment.tpm else []),
        ],
        "volumes": volumes,
    }


def _tpm_helper(deployment: JoinServiceDeployment) -> Manifest:
    """The container with the TPM, without a network socket; privileged if the device cgroup requires it."""
    is_device = deployment.tpm_path == deployment.tpm
    privileged = {"privileged": True, "allowPrivilegeEscalation": True} if is_device else {}
    return {
        "name": "tpm-helper",
        "command": [deployment.command[0], "tpm-helper"],
        "args": [f"--device={deployment.tpm}", f"--socket={TPM_SOCKET}"],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": {**_SECURITY, **privileged},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [_TPM_MOUNT, {"name": "tpm", "mountPath": deployment.tpm_path}],
    }


def _arguments(deployment: JoinServiceDeployment) -> list[str]:
    arguments = [f"--port={deployment.port}", f"--health-port={HEALTH_PORT}", f"--pki={kubeadm_defaults.PKI}"]
    if deployment.evidence:
        arguments.append(f"--evidence={EVIDENCE_FOLDER}/{EVIDENCE_FILE}")
    return arguments


def _volumes(deployment: JoinServiceDeployment) -> tuple[list[Manifest], list[Manifest]]:
    volumes: list[Manifest] = [
        {"name": "pki", "hostPath": {"path": kubeadm_defaults.PKI, "type": "Directory"}}
    ]
    mounts: list[Manifest] = [{"name": "pki", "mountPath": kubeadm_defaults.PKI, "readOnly": True}]
    if deployment.evidence:
        secret = {"secretName": f"{NAME}-evidence", "defaultMode": 0o400}
        volumes.append({"name": "evidence", "secret": secret})
        mounts.append({"name": "evidence", "mountPath": EVIDENCE_FOLDER, "readOnly": True})
    if deployment.tpm:
        kind = "CharDevice" if deployment.tpm_path == deployment.tpm else "Socket"
        volumes += [{"name": "tpm", "hostPath": {"path": deployment.tpm_path, "type": kind}}]
        volumes += [{"name": _TPM_MOUNT["name"], "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
        mounts.append(_TPM_MOUNT)
    for number, path in enumerate(deployment.files):
        volumes.append({"name": f"file-{number}", "hostPath": {"path": path}})
        mounts.append({"name": f"file-{number}", "mountPath": path})
    return volumes, mounts


def _probe(path: str, *, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "host": _LOOPBACK, "port": HEALTH_PORT, "scheme": "HTTP"},
        "periodSeconds": 10,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _rule(group: str, resource: str, verbs: list[str], name: str = "") -> Manifest:
    rule: Manifest = {"apiGroups": [group], "resources": [resource], "verbs": verbs}
    return rule | {"resourceNames": [name]} if name else rule


def _metadata(name: str, namespace: str = NAMESPACE) -> Manifest:
    return {"name": name, "namespace": namespace, "labels": LABELS}
