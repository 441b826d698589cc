"""Manifests of workloads that an API server calls: webhooks, a CRD conversion and an aggregated API.

All are served by the extension server, one pod per cluster node behind one Service. The API server reaches
them only through the pod network.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from bootbridge.common.yaml_text import to_yaml
from bootbridge.lab.extension_server import API_GROUP, CRD_VERSIONS, GROUP
from bootbridge.lab.images import WEBHOOK_IMAGE
from bootbridge.lab.node_runtime import PAUSE_IMAGE
from bootbridge.trust.authority import Authority

Manifest = dict[str, Any]

NAMESPACE = "extensions"
SERVICE = "extension"
TLS_PORT, PLAIN_PORT = 8443, 8080
LABELS = {"app": SERVICE}
# A namespace with this label has its pods validated and its ConfigMaps mutated.
GUARDED = {f"{GROUP}/guarded": "true"}
API_SERVICE = f"v1.{API_GROUP}"
WIDGETS = f"widgets.{GROUP}"
# Timeout of a webhook call.
WEBHOOK_SECONDS = 10


@dataclass(frozen=True)
class Workloads:
    """All manifests; `authority` signs the server's certificate and is their caBundle."""

    authority: Authority

    @classmethod
    def create(cls) -> Workloads:
        return cls(Authority.create("extensions"))

    def all(self) -> list[Manifest]:
        return [*self.served(), *self.registered()]

    def served(self) -> list[Manifest]:
        """Returns what runs in the cluster."""
        return [namespace(NAMESPACE), self._certificate(), _service(), _daemon_set()]

    def registered(self) -> list[Manifest]:
        """Returns what makes the API server call it."""
        return [self.validating(), self.mutating(), self.widgets(), self.api_service()]

    def validating(self) -> Manifest:
        return self._webhook("ValidatingWebhookConfiguration", "validate", "pods")

    def mutating(self) -> Manifest:
        return self._webhook("MutatingWebhookConfiguration", "mutate", "configmaps")

    def widgets(self) -> Manifest:
        """Returns a custom resource that is stored as v1 and converted to v2."""
        names = {"plural": "widgets", "singular": "widget", "kind": "Widget"}
        webhook = {"conversionReviewVersions": ["v1"], "clientConfig": self._client("/convert")}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": WIDGETS},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": names,
                "versions": [_version(name, storage=name == CRD_VERSIONS[0]) for name in CRD_VERSIONS],
                "conversion": {"strategy": "Webhook", "webhook": webhook},
            },
        }

    def api_service(self) -> Manifest:
        return {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API_SERVICE},
            "spec": {
                "group": API_GROUP,
                "version": "v1",
                "service": {"namespace": NAMESPACE, "name": SERVICE, "port": 443},
                "caBundle": _encoded(self.authority.cert_pem),
                "groupPriorityMinimum": 1000,
                "versionPriority": 10,
            },
        }

    def _certificate(self) -> Manifest:
        leaf = self.authority.issue_server([f"{SERVICE}.{NAMESPACE}.svc"])
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SERVICE, "namespace": NAMESPACE},
            "type": "kubernetes.io/tls",
            "data": {"tls.crt": _encoded(leaf.cert_pem), "tls.key": _encoded(leaf.key_pem)},
        }

    def _webhook(self, kind: str, verb: str, resource: str) -> Manifest:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}
        hook = {
            "name": f"{verb}.{GROUP}",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            # Requests are rejected while the webhook is unreachable.
            "failurePolicy": "Fail",
            "timeoutSeconds": WEBHOOK_SECONDS,
            "namespaceSelector": {"matchLabels": GUARDED},
            "rules": [rule],
            "clientConfig": self._client(f"/{verb}"),
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": f"{verb}.{GROUP}"},
            "webhooks": [hook],
        }

    def _client(self, path: str) -> Manifest:
        service = {"namespace": NAMESPACE, "name": SERVICE, "path": path, "port": 443}
        return {"service": service, "caBundle": _encoded(self.authority.cert_pem)}


def namespace(name: str, labels: dict[str, str] | None = None) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}


def pod(name: str, inside: str, labels: dict[str, str] | None = None) -> Manifest:
    """Returns a pod for the webhooks to decide on; its node selector matches no node."""
    container = {"name": "pause", "image": PAUSE_IMAGE, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": inside, "labels": labels or {}},
        "spec": {"containers": [container], "nodeSelector": {f"{GROUP}/nowhere": "true"}},
    }


def config_map(name: str, inside: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": inside}}


def widget(name: str, inside: str, size: int) -> Manifest:
    metadata = {"name": name, "namespace": inside}
    return {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": metadata, "spec": {"size": size}}


def to_manifest_text(manifests: list[Manifest]) -> bytes:
    """Returns the input of `kubectl apply -f -`."""
    return b"---\n".join(to_yaml(manifest) for manifest in manifests)


def _service() -> Manifest:
    ports = [
        {"name": "https", "port": 443, "targetPort": TLS_PORT},
        {"name": "http", "port": 80, "targetPort": PLAIN_PORT},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {"selector": LABELS, "ports": ports},
    }


def _daemon_set() -> Manifest:
    template = {"metadata": {"labels": LABELS}, "spec": _pod_spec()}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": LABELS}, "template": template},
    }


def _pod_spec() -> Manifest:
    container = {
        "name": SERVICE,
        "image": WEBHOOK_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/usr/bin/extension-server"],
        "stdin": True,
        "ports": [{"containerPort": TLS_PORT}, {"containerPort": PLAIN_PORT}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PLAIN_PORT}, "periodSeconds": 2},
        "volumeMounts": [
            {"name": "tls", "mountPath": "/tls", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    return {
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"fsGroup": 65532},
        "containers": [container],
        "volumes": [
            {"name": "tls", "secret": {"secretName": SERVICE, "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _version(name: str, *, storage: bool) -> Manifest:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": schema}}


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
