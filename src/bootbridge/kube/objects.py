"""Requests about whole objects: apply, get, list and delete whatever kind stands in the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bootbridge.kube.requests import ApiRequest, Json

FIELD_MANAGER = "bootbridge"


@dataclass(frozen=True, slots=True)
class Kind:
    """Where the API server keeps objects of this kind."""

    name: str
    root: str
    plural: str
    namespaced: bool = True


NAMESPACE = Kind("Namespace", "/api/v1", "namespaces", namespaced=False)
SECRET = Kind("Secret", "/api/v1", "secrets")
POD = Kind("Pod", "/api/v1", "pods")
CONFIG_MAP = Kind("ConfigMap", "/api/v1", "configmaps")
DAEMON_SET = Kind("DaemonSet", "/apis/apps/v1", "daemonsets")
NODE = Kind("Node", "/api/v1", "nodes", namespaced=False)
CERTIFICATE_REQUEST = Kind(
    "CertificateSigningRequest",
    "/apis/certificates.k8s.io/v1",
    "certificatesigningrequests",
    namespaced=False,
)
LEASE = Kind("Lease", "/apis/coordination.k8s.io/v1", "leases")
SERVICE_ACCOUNT = Kind("ServiceAccount", "/api/v1", "serviceaccounts")
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLE = Kind("Role", _RBAC, "roles")
ROLE_BINDING = Kind("RoleBinding", _RBAC, "rolebindings")
CLUSTER_ROLE = Kind("ClusterRole", _RBAC, "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING = Kind("ClusterRoleBinding", _RBAC, "clusterrolebindings", namespaced=False)
_KINDS = {
    kind.name: kind
    for kind in (
        *(NAMESPACE, SECRET, POD, CONFIG_MAP, DAEMON_SET, NODE, LEASE, SERVICE_ACCOUNT),
        *(ROLE, ROLE_BINDING, CLUSTER_ROLE, CLUSTER_ROLE_BINDING, CERTIFICATE_REQUEST),
    )
}


@dataclass(frozen=True, slots=True)
class Ref:
    """One object by name."""

    kind: Kind
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind.name} {place}{self.name}"

    @property
    def path(self) -> str:
        return f"{_collection(self.kind, self.namespace)}/{quote(self.name, safe='')}"


def ref_of(manifest: Json) -> Ref:
    metadata = manifest["metadata"]
    return Ref(_KINDS[manifest["kind"]], metadata["name"], metadata.get("namespace", ""))


def get_object(ref: Ref) -> ApiRequest:
    return ApiRequest("GET", ref.path)


def create_object(manifest: Json) -> ApiRequest:
    """Create: whoever comes second is answered 409."""
    ref = ref_of(manifest)
    return ApiRequest("POST", _collection(ref.kind, ref.namespace), body=manifest)


def list_objects(kind: Kind, namespace: str = "", selector: str = "") -> ApiRequest:
    """Without a namespace: those of all namespaces."""
    query = (("labelSelector", selector),) if selector else ()
    return ApiRequest("GET", _collection(kind, namespace), query=query)


def list_one(ref: Ref, resource_version: str = "") -> ApiRequest:
    """A list of this object alone, or of none: what a watch of it begins with."""
    return list_where(ref.kind, f"metadata.name={ref.name}", resource_version, ref.namespace)


def list_where(kind: Kind, fields: str, resource_version: str = "", namespace: str = "") -> ApiRequest:
    """Those whose fields are these: what a watch of them begins with."""
    query = [("fieldSelector", fields)]
    if resource_version:
        query.append(("resourceVersion", resource_version))
    return ApiRequest("GET", _collection(kind, namespace), query=tuple(query))


def watch_one(ref: Ref, resource_version: str, seconds_max: int) -> ApiRequest:
    return watch_where(ref.kind, f"metadata.name={ref.name}", resource_version, seconds_max, ref.namespace)


def watch_where(
    kind: Kind, fields: str, resource_version: str, seconds_max: int, namespace: str = ""
) -> ApiRequest:
    query = (
        ("watch", "true"),
        ("allowWatchBookmarks", "true"),
        ("timeoutSeconds", str(seconds_max)),
        ("fieldSelector", fields),
        ("resourceVersion", resource_version),
    )
    return ApiRequest("GET", _collection(kind, namespace), query=query)


def apply_object(manifest: Json, *, dry_run: bool = False) -> ApiRequest:
    """Server-side apply. Not forced: a field that somebody else took over is answered 409, naming them."""
    query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
    if dry_run:
        query.append(("dryRun", "All"))
    return ApiRequest(
        "PATCH", ref_of(manifest).path, tuple(query), manifest, content_type="application/apply-patch+yaml"
    )


def merge_object(ref: Ref, patch: Json) -> ApiRequest:
    """Change the fields in `patch` alone; with a resourceVersion in it, only what was seen."""
    query = (("fieldManager", FIELD_MANAGER),)
    return ApiRequest("PATCH", ref.path, query, patch, content_type="application/merge-patch+json")


def delete_object(ref: Ref, uid: str = "") -> ApiRequest:
    """Delete; with `uid` only the very object that was seen.

    In the background, what depends on it after it: in the foreground an object would have to wait for a
    garbage collector, which a cluster that failed to come up may not have.
    """
    options: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
    }
    if uid:
        options["preconditions"] = {"uid": uid}
    return ApiRequest("DELETE", ref.path, body=options)


def finalise_namespace(ref: Ref, found: Json) -> ApiRequest:
    """Say that nothing is left in a namespace: what its controller would say, had it been able to look."""
    body = {
        **found,
        "apiVersion": "v1",
        "kind": "Namespace",
        "spec": {**found.get("spec", {}), "finalizers": []},
    }
    return ApiRequest("PUT", f"{ref.path}/finalize", body=body)


def _collection(kind: Kind, namespace: str) -> str:
    if kind.namespaced and namespace:
        return f"{kind.root}/namespaces/{quote(namespace, safe='')}/{kind.plural}"
    return f"{kind.root}/{kind.plural}"
