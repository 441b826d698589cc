"""An API server's rules about objects, in memory: names are unique, versions count, watches see changes.

It stands where `KubeClient` stands and takes the very requests; the real server's tests are beside it.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from typing import Any

from bootbridge.kube.errors import KubeError
from bootbridge.kube.objects import ObjectClient
from bootbridge.kube.requests import ApiRequest, ApiResponse

Json = dict[str, Any]
# Given a request: raises to make it fail, returns to let it be answered.
Fault = Callable[[ApiRequest], None]


class MemoryApi(ObjectClient):
    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}  # by path
        self.requests: list[ApiRequest] = []
        self.faults: list[Fault] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.created_at = "2026-11-16T12:00:00Z"
        self._version = 100
        self._history: list[Json] = []
        self._watchers: list[asyncio.Queue[Json | None]] = []

    async def send(self, request: ApiRequest, **_: object) -> ApiResponse:
        self.requests.append(request)
        for fault in self.faults:
            fault(request)
        # Between being asked and answering, others are served: what a race needs.
        await asyncio.sleep(0)
        await self.answering.wait()
        status, body = getattr(self, f"_{request.method.lower()}")(request)
        return ApiResponse(status, copy.deepcopy(body))

    async def watch(
        self, request: ApiRequest, *, opened: Callable[[int], None] = lambda _: None, **_: object
    ) -> AsyncGenerator[Json, None]:
        events: asyncio.Queue[Json | None] = asyncio.Queue()
        since = int(dict(request.query)["resourceVersion"])
        for past in self._history:
            if int(past["object"]["metadata"]["resourceVersion"]) > since:
                events.put_nowait(past)
        self._watchers.append(events)
        try:
            opened(200)
            while (event := await events.get()) is not None:
                yield event
        finally:
            self._watchers.remove(events)

    async def aclose(self) -> None:
        self.end_watches()

    # --- what tests do

    def put(self, path: str, body: Json) -> Json:
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self._version += 1
        metadata = {"creationTimestamp": self.created_at} | body.get("metadata", {})
        metadata["resourceVersion"] = str(self._version)
        self.objects[path] = copy.deepcopy(body) | {"metadata": metadata}
        self._tell(kind, self.objects[path])
        return self.objects[path]

    def remove(self, path: str) -> None:
        self._version += 1
        gone = self.objects.pop(path)
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._tell("DELETED", gone)

    def end_watches(self) -> None:
        for events in self._watchers:
            events.put_nowait(None)

    @property
    def watches(self) -> int:
        return len(self._watchers)

    def below(self, part: str) -> list[Json]:
        """The objects whose path has this in it."""
        return [body for path, body in self.objects.items() if part in path]

    # --- how it answers

    def _get(self, request: ApiRequest) -> tuple[int, Json]:
        if selector := dict(request.query).get("fieldSelector"):
            below = [body for path, body in self.objects.items() if path.startswith(f"{request.path}/")]
            items = [body for body in below if _selected(body, selector)]
            return 200, {"metadata": {"resourceVersion": str(self._version)}, "items": items}
        return 200, self._existing(request.path)

    def _post(self, request: ApiRequest) -> tuple[int, Json]:
        body = _body(request)
        path = f"{request.path}/{body['metadata']['name']}"
        if path in self.objects:
            raise KubeError(409, "AlreadyExists", f"{path} already exists")
        return 201, self.put(path, body)

    def _put(self, request: ApiRequest) -> tuple[int, Json]:
        path = request.path.removesuffix("/approval")
        body, found = _body(request), self._existing(path)
        if body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
            raise KubeError(409, "Conflict", "the object has been modified")
        return 200, self.put(path, body)

    def _delete(self, request: ApiRequest) -> tuple[int, Json]:
        found = self._existing(request.path)
        self.remove(request.path)
        return 200, found

    def _patch(self, request: ApiRequest) -> tuple[int, Json]:
        return 200, self.put(request.path, _body(request))

    def _existing(self, path: str) -> Json:
        if path not in self.objects:
            raise KubeError(404, "NotFound", f"{path} not found")
        return self.objects[path]

    def _tell(self, kind: str, body: Json) -> None:
        self._history.append({"type": kind, "object": copy.deepcopy(body)})
        for events in self._watchers:
            events.put_nowait(self._history[-1])


def _selected(body: Json, selector: str) -> bool:
    fields, _, wanted = selector.partition("=")
    value: Any = body
    for field in fields.split("."):
        value = value.get(field, {})
    return bool(value == wanted)


def _body(request: ApiRequest) -> Json:
    assert request.body is not None
    return dict(request.body)


def failing(method: str, part: str, error: Exception) -> Fault:
    """A fault for requests of this method whose path has this in it."""

    def fault(request: ApiRequest) -> None:
        if request.method == method and part in request.path:
            raise error

    return fault
