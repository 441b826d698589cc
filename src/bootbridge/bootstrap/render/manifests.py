"""Renders the manifests: server pod, namespace, agent Secret, agent DaemonSet.

**Users.** The server runs as root without capabilities: root owns its keys (0600) and the socket's directory.
Agents own no files on their node and never run as root.

**Admission.** Agents satisfy the `restricted` PodSecurity level, and on OpenShift the `restricted-v2` SCC,
which selects their user. Agents in the host network satisfy neither: their namespace is `privileged` and
without SCCs, but the pods follow all other rules of `restricted`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bootbridge.bootstrap.machine.node_values import PLACEHOLDERS, NodeValues
from bootbridge.bootstrap.plan.permanent import PermanentPlan
from bootbridge.bootstrap.plan.plan import Flavour, Plan, TunnelPlan
from bootbridge.bootstrap.render import program_flags
from bootbridge.common.files import Asset, Tree
from bootbridge.common.yaml_text import to_yaml
from bootbridge.kube.pod_security import HARDENED

Manifest = dict[str, Any]

# Unprivileged, and unused on common node images.
AGENT_UID = 65532
SYSTEM_NODE_CRITICAL = {"priorityClassName": "system-node-critical"}
TOLERATES_ALL = {"tolerations": [{"operator": "Exists"}]}
GRACE_BEYOND_DRAIN_SECONDS = 5
# No limits: a throttled or killed pod would make webhooks unreachable.
REQUESTS = {"requests": {"cpu": "40m", "memory": "64Mi"}}
# Allows writing to /run and /etc, whose SELinux labels forbid it to containers.
UNCONFINED = {"seLinuxOptions": {"type": "spc_t"}}
# Changes the pod when the certificates change, so that no pod continues with old ones.
CA_ANNOTATION = "bootbridge-ca-cert"


# --- the server on the bootstrap node


def server_pod(plan: Plan, values: NodeValues) -> Manifest:
    """Returns the static pod for the bootstrap node's kubelet."""
    # On OpenShift it is not needed although no directory is relabelled: CRI-O runs pods in the host network
    # unconfined (spc_t) by default (`hostnetwork_disable_selinux = true`). Where that is off, the server
    # cannot create its socket; docs/install.md says what to do.
    selinux = {} if plan.flavour is Flavour.OPENSHIFT else UNCONFINED
    pod = _static_server_pod(plan, values.image, program_flags.server_args(plan), selinux)
    pod["metadata"]["annotations"] = {CA_ANNOTATION: values.ca_cert_base64}
    return pod


def permanent_server_pod(plan: PermanentPlan) -> Manifest:
    """Returns the static pod for the kubelet of each control plane."""
    args = program_flags.permanent_server_args(plan)
    pod = _static_server_pod(plan, plan.image.reference, args, UNCONFINED)
    pod["spec"]["containers"][0]["env"] = [_from_field("NODE_NAME", "spec.nodeName")]
    return pod


def _static_server_pod(plan: TunnelPlan, image: str, args: list[str], selinux: Manifest) -> Manifest:
    """Returns a server beside a kube-apiserver."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": plan.server_pod_name,
            "namespace": plan.server_pod_namespace,
            "labels": plan.server_labels,
        },
        "spec": {
            "hostNetwork": True,
            "dnsPolicy": "Default",
            **SYSTEM_NODE_CRITICAL,
            # The value that admission would set; static pods bypass admission.
            "priority": 2000001000,
            **TOLERATES_ALL,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": program_flags.SERVER_DRAIN_SECONDS + GRACE_BEYOND_DRAIN_SECONDS,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [_server_container(plan, image, args, selinux)],
            "volumes": [
                _host_directory("socket", plan.paths.socket_directory, "DirectoryOrCreate"),
                _host_directory("certificates", plan.paths.tls, "Directory"),
            ],
        },
    }


def _server_container(plan: TunnelPlan, image: str, args: list[str], selinux: Manifest) -> Manifest:
    probe = {"host": program_flags.LOOPBACK, "port": plan.ports.server_health, "scheme": "HTTP"}
    return {
        "name": plan.server_pod_name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/bin/proxy-server"],
        "args": args,
        "livenessProbe": _probe("/healthz", probe, period=10, failures=3, delay=10),
        # Ready means that an agent is connected. Liveness does not depend on agents.
        "readinessProbe": _probe("/readyz", probe, period=2, failures=1),
        "resources": REQUESTS,
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, **HARDENED, **selinux},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "socket", "mountPath": plan.paths.socket_directory},
            {
                "name": "certificates",
                "mountPath": program_flags.CERTIFICATES_SEEN_BY_SERVER,
                "readOnly": True,
            },
        ],
    }


# --- the agents in the cluster


def namespace(plan: Plan) -> Manifest:
    """Returns the agents' namespace."""
    level = "privileged" if plan.host_network else "restricted"
    labels = {
        **plan.bootstrap_only,
        **{f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "audit", "warn")},
    }
    metadata: Manifest = {"name": plan.namespace, "labels": labels}
    if plan.flavour is Flavour.OPENSHIFT:
        labels["security.openshift.io/scc.podSecurityLabelSync"] = "false"
        if plan.host_network:
            labels["security.openshift.io/disable-securitycontextconstraints"] = "true"
        # Overrides a cluster-wide default node selector, so that every node gets an agent.
        metadata["annotations"] = {"openshift.io/node-selector": ""}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def agent_secret(plan: Plan, values: NodeValues) -> Manifest:
    """Returns the agents' certificate and the CA of the server."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": plan.secret_name, "namespace": plan.namespace, "labels": plan.agent_labels},
        "type": "Opaque",
        "data": {
            "ca.crt": values.ca_cert_base64,
            "tls.crt": values.agent_cert_base64,
            "tls.key": values.agent_key_base64,
        },
    }


def agent_role(plan: Plan) -> Manifest:
    """Returns the only permission of the agents' service account, with which their tokens prove their pod."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": plan.role_name, "namespace": plan.namespace, "labels": plan.agent_labels},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    }


def agent_role_binding(plan: Plan) -> Manifest:
    subject = {"kind": "ServiceAccount", "name": plan.service_account_name, "namespace": plan.namespace}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": plan.role_name, "namespace": plan.namespace, "labels": plan.agent_labels},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": plan.role_name},
        "subjects": [subject],
    }


def agent_daemonset(plan: Plan, values: NodeValues) -> Manifest:
    """Returns the DaemonSet, which tolerates every taint."""
    metadata = {"name": plan.daemonset_name, "namespace": plan.namespace, "labels": plan.agent_labels}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": {"app": plan.daemonset_name}},
            # The server rejects agents with old certificates, so a gradual update has no benefit.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {
                "metadata": {"labels": plan.agent_labels, "annotations": _agent_annotations(plan, values)},
                "spec": _agent_spec(plan, values),
            },
        },
    }


def _agent_annotations(plan: Plan, values: NodeValues) -> Manifest:
    annotations = {CA_ANNOTATION: values.ca_cert_base64}
    if _scc_picks_user(plan):
        # Otherwise a custom SCC of higher priority could be selected, and reject the pod.
        annotations["openshift.io/required-scc"] = "restricted-v2"
    return annotations


def _agent_spec(plan: Plan, values: NodeValues) -> Manifest:
    secret = {"secretName": plan.secret_name, "defaultMode": 0o440}
    return {
        "hostNetwork": plan.host_network,
        # The node's resolver, because agents start before cluster DNS.
        "dnsPolicy": "Default",
        **SYSTEM_NODE_CRITICAL,
        **TOLERATES_ALL,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": program_flags.AGENT_DRAIN_SECONDS + GRACE_BEYOND_DRAIN_SECONDS,
        "securityContext": _agent_user(plan),
        "containers": [_agent_container(plan, values)],
        "volumes": [{"name": "certificates", "secret": secret}, *_token_volumes(plan)],
    }


def _token_volumes(plan: Plan) -> list[Manifest]:
    """Returns the token that proves the agent's pod. It is valid as long as the certificates."""
    if not plan.proves_nodes:
        return []
    token = {"path": "token", "expirationSeconds": int(plan.validity.total_seconds())}
    return [{"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}}]


def _agent_user(plan: Plan) -> Manifest:
    """Returns the agents' user. The group can read the Secret."""
    common = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if _scc_picks_user(plan):
        return common
    return {**common, "runAsUser": AGENT_UID, "runAsGroup": AGENT_UID, "fsGroup": AGENT_UID}


def _scc_picks_user(plan: Plan) -> bool:
    return plan.flavour is Flavour.OPENSHIFT and not plan.host_network


def _agent_container(plan: Plan, values: NodeValues) -> Manifest:
    probe: Manifest = {"port": plan.ports.agent_health, "scheme": "HTTP"}
    if plan.host_network:
        probe["host"] = program_flags.LOOPBACK
    return {
        "name": plan.daemonset_name,
        "image": values.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/bin/proxy-agent"],
        "args": program_flags.agent_args(plan, values),
        "env": [
            _from_field("NODE_NAME", "spec.nodeName"),
            _from_field("HOST_IP", "status.hostIP"),
            _from_field("POD_IP", "status.podIP"),
        ],
        "livenessProbe": _probe("/healthz", probe, period=10, failures=3, delay=10),
        "readinessProbe": _probe("/readyz", probe, period=5, failures=1),
        "resources": REQUESTS,
        "securityContext": {"runAsNonRoot": True, **HARDENED},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {
                "name": "certificates",
                "mountPath": program_flags.CERTIFICATES_SEEN_BY_AGENT,
                "readOnly": True,
            },
            *(
                {"name": volume["name"], "mountPath": program_flags.TOKEN_SEEN_BY_AGENT, "readOnly": True}
                for volume in _token_volumes(plan)
            ),
        ],
    }


# --- shared


def _probe(path: str, at: Manifest, *, period: int, failures: int, delay: int = 0) -> Manifest:
    return {
        "httpGet": {"path": path, **at},
        "initialDelaySeconds": delay,
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _host_directory(name: str, path: str, kind: str) -> Manifest:
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


# --- files


def templates(plan: Plan) -> Tree:
    """Returns the manifests with placeholders, which the node replaces with sed."""
    values = replace(PLACEHOLDERS, image=plan.image.reference or PLACEHOLDERS.image)
    found = {
        "namespace.yaml": namespace(plan),
        "agent-secret.yaml": agent_secret(plan, values),
        "agent-daemonset.yaml": agent_daemonset(plan, values),
        "server-pod.yaml": server_pod(plan, values),
    }
    if plan.proves_nodes:
        found |= {"agent-role.yaml": agent_role(plan), "agent-role-binding.yaml": agent_role_binding(plan)}
    return {
        f"{plan.paths.templates}/{name}": Asset(to_yaml(manifest), 0o600) for name, manifest in found.items()
    }
