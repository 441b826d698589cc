"""Objects by name, the requests that read and write them, and calls that expect 404 and 409."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bootbridge.kube.errors import KubeError
from bootbridge.kube.kinds import BY_NAME, Kind
from bootbridge.kube.requests import ApiRequest, ApiResponse, Json

FIELD_MANAGER = "bootbridge"


@dataclass(frozen=True, slots=True)
class Ref:
    """One object by kind, name and namespace."""

    kind: Kind
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        prefix = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind.name} {prefix}{self.name}"

    @property
    def path(self) -> str:
        return f"{_collection(self.kind, self.namespace)}/{quote(self.name, safe='')}"


def ref_of(manifest: Json) -> Ref:
    metadata = manifest["metadata"]
    return Ref(BY_NAME[manifest["kind"]], metadata["name"], metadata.get("namespace", ""))


class ObjectClient(ABC):
    """Reads and writes single objects. Where 404 and 409 are expected they are results, not errors."""

    @abstractmethod
    async def send(self, request: ApiRequest, *, timeout: float | None = None) -> ApiResponse:  # noqa: ASYNC109
        """Returns the response; raises KubeError for a status of 300 and above, KubeUnreachable for none."""

    async def send_or_none(self, request: ApiRequest) -> Json | None:
        """Returns the response's body; None for 404 Not Found."""
        try:
            return (await self.send(request)).body
        except KubeError as error:
            if error.is_not_found:
                return None
            raise

    async def get_or_none(self, ref: Ref) -> Json | None:
        """Returns the object; None if it does not exist."""
        return await self.send_or_none(get_object(ref))

    async def create_or_conflict(self, manifest: Json) -> Json | None:
        """Returns the created object; None if an object of that name exists already."""
        return await self._unless_conflict(create_object(manifest))

    async def replace_or_conflict(self, manifest: Json) -> Json | None:
        """Returns the updated object; None if its resourceVersion is not the current one."""
        return await self._unless_conflict(replace_object(manifest))

    async def delete_if_found(self, ref: Ref, *, uid: str = "", resource_version: str = "") -> None:
        """Deletes the object; does nothing if it is gone or, by the preconditions, another one."""
        try:
            await self.send(delete_object(ref, uid=uid, resource_version=resource_version))
        except KubeError as error:
            if not (error.is_not_found or error.is_conflict):
                raise

    async def _unless_conflict(self, request: ApiRequest) -> Json | None:
        try:
            return (await self.send(request)).body
        except KubeError as error:
            if error.is_conflict:
                return None
            raise


def get_object(ref: Ref) -> ApiRequest:
    return ApiRequest("GET", ref.path)


def create_object(manifest: Json) -> ApiRequest:
    ref = ref_of(manifest)
    return ApiRequest("POST", _collection(ref.kind, ref.namespace), body=manifest)


def replace_object(manifest: Json) -> ApiRequest:
    """Updates the whole object; 409 if the manifest's resourceVersion is not the current one."""
    return ApiRequest("PUT", ref_of(manifest).path, body=manifest)


def list_objects(
    kind: Kind, namespace: str = "", labels: str = "", *, fields: str = "", resource_version: str = ""
) -> ApiRequest:
    """Without a namespace: the objects of all namespaces.

    ``resource_version`` "0" lets the API server answer from its cache; "" requests the newest state.
    """
    query = (("labelSelector", labels), ("fieldSelector", fields), ("resourceVersion", resource_version))
    return ApiRequest("GET", _collection(kind, namespace), query=_given(query))


def watch_objects(
    kind: Kind,
    namespace: str = "",
    labels: str = "",
    *,
    fields: str = "",
    resource_version: str,
    seconds_max: int,
) -> ApiRequest:
    query = (
        ("watch", "true"),
        ("allowWatchBookmarks", "true"),
        ("timeoutSeconds", str(seconds_max)),
        ("labelSelector", labels),
        ("fieldSelector", fields),
        ("resourceVersion", resource_version),
    )
    return ApiRequest("GET", _collection(kind, namespace), query=_given(query))


def apply_object(manifest: Json, *, dry_run: bool = False) -> ApiRequest:
    """Server-side apply, not forced: 409 for a field of another manager, which the message names."""
    query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
    if dry_run:
        query.append(("dryRun", "All"))
    return ApiRequest(
        "PATCH", ref_of(manifest).path, tuple(query), manifest, content_type="application/apply-patch+yaml"
    )


def merge_object(ref: Ref, patch: Json) -> ApiRequest:
    """Changes only the fields in `patch`; 409 if it contains an outdated resourceVersion."""
    query = (("fieldManager", FIELD_MANAGER),)
    return ApiRequest("PATCH", ref.path, query, patch, content_type="application/merge-patch+json")


def delete_object(ref: Ref, *, uid: str = "", resource_version: str = "", now: bool = False) -> ApiRequest:
    """Deletes the object; 409 if its UID or resourceVersion differs from the one given.

    ``now``: a pod is deleted without its grace period, and without its kubelet.

    Dependents are deleted in the background: foreground deletion needs a garbage collector, which a
    cluster that failed to come up may not have.
    """
    options: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
    }
    if preconditions := dict(_given((("uid", uid), ("resourceVersion", resource_version)))):
        options["preconditions"] = preconditions
    if now:
        options["gracePeriodSeconds"] = 0
    return ApiRequest("DELETE", ref.path, body=options)


def finalise_namespace(ref: Ref, found: Json) -> ApiRequest:
    """Removes the finalizers of a namespace, as its controller does once the namespace is empty."""
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


def _given(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in pairs if value)
