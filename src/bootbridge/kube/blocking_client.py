"""A blocking client for the installer: the async client on an event loop of its own, with operator errors."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from bootbridge.errors import OperatorError
from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.client import REQUEST_SECONDS_MAX, KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kinds import Kind
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.objects import Ref, apply_object, finalise_namespace, list_objects, merge_object, ref_of
from bootbridge.kube.requests import ApiRequest, Json

T = TypeVar("T")
LOG_BYTES_MAX = 4 << 20
PROBE_SECONDS_MAX = 3.0
# One command sends few requests. With the server's default of 5 per second, `down` waited 4.6 s for its 42.
QPS, BURST = 50.0, 300
_FORBIDDEN = 403
# Ready includes that RBAC roles are loaded; before that an administrator gets 403 for everything.
READY, VERSION = "/readyz", "/version"
_HINTS = {
    401: "the API server rejects the kubeconfig's credentials: use another with --kubeconfig",
    _FORBIDDEN: "grant this user the permission, or use another kubeconfig with --kubeconfig",
    409: "another field manager changed this object: undo that change, or run `bootbridge down` first",
}


class ClusterClient:
    """One API server. Must be closed; every call has a timeout."""

    def __init__(self, access: ClusterAccess, *, request_seconds: float = REQUEST_SECONDS_MAX) -> None:
        self._access = access
        self._runner = asyncio.Runner()
        self._client = KubeClient(
            access, qps=QPS, burst=BURST, user_agent="bootbridge", request_seconds=request_seconds
        )
        self.unreachable_reason = ""
        self._was_ready = False

    @classmethod
    def from_kubeconfig(cls, path: Path) -> ClusterClient:
        return cls(load_kubeconfig(path))

    def __repr__(self) -> str:
        return f"<ClusterClient {self._access.authority}>"

    def address_only(self) -> Json:
        """Returns a kubeconfig with address and CA of the API server, and no user."""
        return self._access.address_only()

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def probe(self) -> str:
        """Returns why the API server is not reachable; empty if it is.

        After a failed probe all calls fail at once, without waiting, until the next probe succeeds.
        """
        self.unreachable_reason = ""
        try:
            try:
                self._request(READY)
                self._was_ready = True
            except KubeError:
                if self._was_ready:  # so it is restarting
                    raise
                self._request(VERSION)  # some API servers are never ready, or do not show it to this user
        except KubeError as error:
            # An error status proves that the server runs. While it starts or stops it answers 5xx, or 403
            # because its roles are not loaded yet.
            starting = error.status >= 500 or (error.status == _FORBIDDEN and self._was_ready)
            self.unreachable_reason = f"{self._access.authority}: {error}" if starting else ""
        except KubeUnreachable as error:
            self.unreachable_reason = str(error)
        return self.unreachable_reason

    def _request(self, path: str) -> None:
        self._runner.run(self._client.text(ApiRequest("GET", path), timeout=PROBE_SECONDS_MAX))

    def get(self, ref: Ref) -> Json | None:
        return self._run(self._client.get_or_none(ref), f"GET {ref.path}")

    def list(self, kind: Kind, namespace: str = "", selector: str = "") -> list[dict[str, Any]]:
        request = list_objects(kind, namespace, selector)
        return [dict(item) for item in self._send(request, f"GET {request.path}").get("items") or ()]

    def log(self, pod: Ref, container: str, *, lines: int, previous: bool = False) -> bytes:
        """Returns the end of a container's log; with `previous`, of its run before the last restart."""
        query = [("container", container), ("tailLines", str(lines)), ("limitBytes", str(LOG_BYTES_MAX))]
        if previous:
            query.append(("previous", "true"))
        request = ApiRequest("GET", f"{pod.path}/log", tuple(query))
        return self._run(self._client.text(request), f"GET {request.path}")

    def apply(self, manifest: Json, *, dry_run: bool = False) -> Json:
        return self._send(apply_object(manifest, dry_run=dry_run), str(ref_of(manifest)))

    def merge(self, ref: Ref, patch: Json) -> Json:
        return self._send(merge_object(ref, patch), str(ref))

    def delete(self, ref: Ref, uid: str = "") -> None:
        """Deletes the object; does nothing if it is gone or, by its UID, another one."""
        self._run(self._client.delete_if_found(ref, uid=uid), f"DELETE {ref.path}")

    def finalise(self, ref: Ref, found: Json) -> None:
        """Removes the finalizers of a namespace at the version that was read; one that is gone is fine."""
        request = finalise_namespace(ref, found)
        self._run(self._client.send_or_none(request), f"PUT {request.path}")

    def _send(self, request: ApiRequest, subject: str) -> Json:
        return self._run(self._client.send(request), subject).body

    def _run(self, call: Coroutine[Any, Any, T], subject: str) -> T:
        if self.unreachable_reason:
            call.close()
            raise ApiUnreachableError(self.unreachable_reason)
        try:
            return self._runner.run(call)
        except KubeError as error:
            raise ApiRequestError(error, subject) from error
        except KubeUnreachable as error:
            raise ApiUnreachableError(str(error)) from error


class ApiRequestError(OperatorError):
    """The API server answered with an error status."""

    def __init__(self, error: KubeError, subject: str) -> None:
        super().__init__(str(error), subject=subject, hint=_HINTS.get(error.status, ""))
        self.status = error.status


class ApiUnreachableError(OperatorError):
    """The API server did not answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, subject="API server")
