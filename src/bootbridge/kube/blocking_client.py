"""The cluster as the parts see it: a few blocking calls, each with a time limit, over our own client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from bootbridge.errors import OperatorError
from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.objects import (
    Kind,
    Ref,
    apply_object,
    delete_object,
    finalise_namespace,
    get_object,
    list_objects,
    merge_object,
    ref_of,
)
from bootbridge.kube.requests import ApiRequest, Json

T = TypeVar("T")
LOG_BYTES_MAX = 4 << 20
REQUEST_SECONDS_MAX = 10.0
PROBE_SECONDS_MAX = 3.0
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409
# Ready means also that roles are loaded: until then an administrator by a role is refused everything.
READY, VERSION = "/readyz", "/version"
_HINTS = {
    401: "the kubeconfig's credentials are not accepted: give another with --kubeconfig",
    403: "give this user the right, or another kubeconfig with --kubeconfig",
    _CONFLICT: "somebody else changed this object: take their change back, or run `bootbridge down` first",
}


class ClusterClient:
    """One API server. `close` it; its connections live on an event loop of their own."""

    def __init__(self, access: ClusterAccess, *, request_seconds: float = REQUEST_SECONDS_MAX) -> None:
        self._access = access
        self._request_seconds = request_seconds
        self._runner = asyncio.Runner()
        self._client = KubeClient(access, user_agent="bootbridge")
        self.unreachable_reason = ""
        self._was_ready = False

    @classmethod
    def from_kubeconfig(cls, path: Path) -> ClusterClient:
        return cls(load_kubeconfig(path))

    def __repr__(self) -> str:
        return f"<ClusterClient {self._access.authority}>"

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def probe(self) -> str:
        """Why the API server does not answer; empty when it does.

        Until asked again, one found silent is not waited for by any other call.
        """
        self.unreachable_reason = ""
        try:
            try:
                self._ask(READY)
                self._was_ready = True
            except KubeError:
                if self._was_ready:  # so it is starting again
                    raise
                self._ask(VERSION)  # some never say that they are ready, or not to this user
        except KubeError as error:
            # Whoever refuses is there; one that starts or stops says 5xx, or does not know its roles yet.
            starting = error.status >= 500 or (error.status == _FORBIDDEN and self._was_ready)
            self.unreachable_reason = f"{self._access.authority}: {error}" if starting else ""
        except KubeUnreachable as error:
            self.unreachable_reason = str(error)
        return self.unreachable_reason

    def _ask(self, path: str) -> None:
        self._runner.run(self._client.text(ApiRequest("GET", path), timeout=PROBE_SECONDS_MAX))

    def get(self, ref: Ref) -> Json | None:
        return self._unless_missing(get_object(ref))

    def list(self, kind: Kind, namespace: str = "", selector: str = "") -> list[dict[str, Any]]:
        answer = self._send(list_objects(kind, namespace, selector))
        return [dict(item) for item in answer.get("items") or ()]

    def log(self, pod: Ref, container: str, *, lines: int, previous: bool = False) -> bytes:
        """The end of a container's log; with `previous` of the one before its last restart."""
        query = [("container", container), ("tailLines", str(lines)), ("limitBytes", str(LOG_BYTES_MAX))]
        if previous:
            query.append(("previous", "true"))
        request = ApiRequest("GET", f"{pod.path}/log", tuple(query))
        return self._answered(request, self._client.text(request, timeout=self._request_seconds))

    def apply(self, manifest: Json, *, dry_run: bool = False) -> Json:
        return self._send(apply_object(manifest, dry_run=dry_run), str(ref_of(manifest)))

    def merge(self, ref: Ref, patch: Json) -> Json:
        return self._send(merge_object(ref, patch), str(ref))

    def delete(self, ref: Ref, uid: str = "") -> None:
        """Ask for the object's removal; that it is gone, or another by now, is fine."""
        try:
            self._unless_missing(delete_object(ref, uid))
        except ApiRequestError as error:
            if error.status != _CONFLICT:
                raise

    def finalise(self, ref: Ref, found: Json) -> None:
        """Take the cluster's own finalizer off a namespace, as it was seen; one that is gone is fine."""
        self._unless_missing(finalise_namespace(ref, found))

    def _unless_missing(self, request: ApiRequest) -> Json | None:
        try:
            return self._send(request)
        except ApiRequestError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def _send(self, request: ApiRequest, what: str = "") -> Json:
        return self._answered(request, self._client.send(request, timeout=self._request_seconds), what).body

    def _answered(self, request: ApiRequest, call: Coroutine[Any, Any, T], what: str = "") -> T:
        if self.unreachable_reason:
            call.close()
            raise ApiUnreachableError(self.unreachable_reason)
        try:
            return self._runner.run(call)
        except KubeError as error:
            raise ApiRequestError(error, what or f"{request.method} {request.path}") from error
        except KubeUnreachable as error:
            raise ApiUnreachableError(str(error)) from error


class ApiRequestError(OperatorError):
    """The API server said no."""

    def __init__(self, error: KubeError, what: str) -> None:
        super().__init__(str(error), subject=what, hint=_HINTS.get(error.status, ""))
        self.status = error.status


class ApiUnreachableError(OperatorError):
    """The API server did not answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, subject="the API server")
