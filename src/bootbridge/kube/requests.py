"""Requests as values: what is asked of the API server, apart from how it is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One call. The body stays out of ``repr``: it may carry somebody's token."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Json | None = field(default=None, repr=False)
    content_type: str = "application/json"

    @property
    def target(self) -> str:
        return f"{self.path}?{urlencode(self.query, quote_via=quote)}" if self.query else self.path

    def payload(self) -> bytes:
        return b"" if self.body is None else json.dumps(self.body, separators=(",", ":")).encode()


def create_token_review(token: str, audience: str) -> ApiRequest:
    spec: dict[str, Any] = {"token": token}
    if audience:
        spec["audiences"] = [audience]
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    return ApiRequest("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=body)


def get_lease(namespace: str, name: str) -> ApiRequest:
    return ApiRequest("GET", _lease_path(namespace, name))


def create_lease(namespace: str, lease: Json) -> ApiRequest:
    return ApiRequest("POST", _lease_path(namespace), body=lease)


def update_lease(namespace: str, lease: Json) -> ApiRequest:
    return ApiRequest("PUT", _lease_path(namespace, lease["metadata"]["name"]), body=lease)


def delete_lease(namespace: str, name: str, resource_version: str) -> ApiRequest:
    """Delete the lease only as it was seen: a renewed one is answered 409 Conflict."""
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"resourceVersion": resource_version},
    }
    return ApiRequest("DELETE", _lease_path(namespace, name), body=options)


def list_leases(namespace: str, selector: str = "", resource_version: str = "") -> ApiRequest:
    """``resource_version`` "0" lets the API server answer from its cache; "" asks for the newest state."""
    query = {"labelSelector": selector, "resourceVersion": resource_version}
    return ApiRequest("GET", _lease_path(namespace), query=_given(query))


def watch_leases(namespace: str, selector: str, resource_version: str, seconds_max: int) -> ApiRequest:
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(seconds_max),
        "labelSelector": selector,
        "resourceVersion": resource_version,
    }
    return ApiRequest("GET", _lease_path(namespace), query=_given(query))


def _lease_path(namespace: str, name: str = "") -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
    return f"{path}/{quote(name, safe='')}" if name else path


def _given(query: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in query.items() if value)
