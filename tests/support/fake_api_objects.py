"""The rules of an API server about objects: names are unique, versions count, watches see changes.

`FakeApiServer` serves them over HTTP, `FakeCluster` adds controllers, `MemoryApi` replaces a `KubeClient`.
Selects by equality only, so that it does not use the code under test.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from bootbridge.kube.errors import KubeError
from bootbridge.kube.kinds import BY_NAME
from bootbridge.kube.objects import ObjectClient
from bootbridge.kube.requests import ApiRequest, ApiResponse

Json = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace, name
KEPT = ("uid", "creationTimestamp", "deletionTimestamp")  # fields of metadata that a write preserves
KINDS = {kind.plural: kind.name for kind in BY_NAME.values()}


@dataclass
class Call:
    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


# Raises to make the call fail, returns to let it be answered.
Fault = Callable[[Call], object]


class ApiObjects:
    def __init__(self) -> None:
        self.objects: dict[Key, Json] = {}
        self.token_reviews: dict[str, Any] = {}  # status by token
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        # Cleared: calls are received and not answered.
        self.answering = asyncio.Event()
        self.answering.set()
        self.created_at = "2026-11-16T12:00:00Z"
        self.gone_as_status = False
        self.version = 100
        self._oldest = 0
        self._history: list[tuple[Key, Json]] = []
        self._watchers: dict[asyncio.Queue[Any], Call] = {}
        self._lock = threading.RLock()

    # --- for tests

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """Answers a controller or a kubelet: without faults, and without a place in `calls`."""
        url = urlsplit(path)
        try:
            return self.answer(Call(method, url.path, query_of(url.query), body))
        except KubeError as error:
            return error.status, status_of(error)

    def put(self, path: str, body: Json) -> Json:
        return self._store(_parse(path)[0], body)

    def read(self, path: str) -> Json:
        return self.objects[_parse(path)[0]]

    def exists(self, path: str) -> bool:
        return _parse(path)[0] in self.objects

    def remove(self, path: str) -> None:
        self._remove(_parse(path)[0])

    def named(self, prefix: str) -> list[Json]:
        return [found for key, found in self.objects.items() if key[2].startswith(prefix)]

    def names(self) -> list[str]:
        with self._lock:
            return sorted("/".join(key) for key in self.objects)

    def held(self, plural: str, namespace: str, name: str) -> Json | None:
        with self._lock:
            return copy.deepcopy(self.objects.get((plural, namespace, name)))

    def forget_history(self) -> None:
        """Compacts: older versions cannot be watched from any more."""
        self.version += 1
        self._oldest = self.version
        self._history.clear()

    def bookmark(self) -> None:
        self.version += 1
        metadata = {"resourceVersion": str(self.version)}
        self.send_to_watches({"type": "BOOKMARK", "object": {"metadata": metadata}})

    def end_watches(self) -> None:
        self.send_to_watches(None)

    def send_to_watches(self, item: Json | bytes | None) -> None:
        """Sends an event, raw bytes, or with None the end."""
        for queue in self._watchers:
            queue.put_nowait(item)

    @property
    def watches(self) -> int:
        return len(self._watchers)

    def calls_to(self, method: str, path: str = "", **query: str) -> list[Call]:
        return [
            call
            for call in self.calls
            if call.method == method and call.path.startswith(path) and query.items() <= call.query.items()
        ]

    # --- for clients

    def receive(self, call: Call) -> None:
        self.calls.append(call)
        for fault in list(self.faults):
            fault(call)

    def answer(self, call: Call) -> tuple[int, Json]:
        with self._lock:
            return copy.deepcopy(self._answer(call))

    def open_watch(self, call: Call) -> asyncio.Queue[Any]:
        """Returns the queue of its events, past ones first; None is the end."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        since = int(call.query["resourceVersion"])
        if since < self._oldest:
            gone = KubeError(410, "Expired", "too old resource version")
            if self.gone_as_status:
                raise gone
            queue.put_nowait({"type": "ERROR", "object": status_of(gone)})
            queue.put_nowait(None)
        for key, event in self._history:
            found = event["object"]
            if int(found["metadata"]["resourceVersion"]) > since and _selected(key, found, call):
                queue.put_nowait(event)
        self._watchers[queue] = call
        return queue

    def close_watch(self, queue: asyncio.Queue[Any]) -> None:
        del self._watchers[queue]

    # --- REST

    def _answer(self, call: Call) -> tuple[int, Json]:
        if call.path in ("/version", "/readyz"):
            return 200, {"major": "1", "minor": "33"}
        key, subresource = _parse(call.path)
        if key[0] == "tokenreviews":
            return 201, {**call.body, "status": self.token_reviews.get(call.body["spec"]["token"], {})}
        if not key[2]:
            return self._create(key, call) if call.method == "POST" else self._list(call)
        if call.method == "PATCH" and not subresource:
            return 200, self._patch(key, call)
        if key not in self.objects:
            raise KubeError(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        found = self.objects[key]
        if subresource == "status":
            found["status"] = call.body["status"]
        elif call.method == "PUT" and subresource in ("", "approval"):
            _expect(call.body["metadata"].get("resourceVersion"), found, "resourceVersion")
            return 200, self._store(key, call.body)
        elif call.method == "DELETE":
            for name, value in ((call.body or {}).get("preconditions") or {}).items():
                _expect(value, found, name)
            self._delete(key, call.body or {})
        return 200, found

    def _list(self, call: Call) -> tuple[int, Json]:
        items = [found for key, found in sorted(self.objects.items()) if _selected(key, found, call)]
        kind = KINDS[_parse(call.path)[0][0]]
        metadata = {"resourceVersion": str(self.version)}
        return 200, {"kind": f"{kind}List", "metadata": metadata, "items": items}

    def _create(self, collection: Key, call: Call) -> tuple[int, Json]:
        key = (*collection[:2], call.body["metadata"]["name"])
        if key in self.objects:
            raise KubeError(409, "AlreadyExists", f'{key[0]} "{key[2]}" already exists')
        return 201, self._store(key, call.body)

    def _patch(self, key: Key, call: Call) -> Json:
        kind = call.headers.get("content-type", "")
        if "apply-patch" in kind and "fieldManager" not in call.query:
            raise KubeError(400, "BadRequest", "fieldManager is required")
        body = _merged(self.objects.get(key, {}), call.body) if "merge-patch" in kind else call.body
        return self._store(key, body, dry_run=call.query.get("dryRun") == "All")

    def _store(self, key: Key, body: Json, *, dry_run: bool = False) -> Json:
        before = self.objects.get(key)
        held: Json = before["metadata"] if before else {"uid": f"uid-{self.version}"}
        after = copy.deepcopy(body)
        if before and "status" in before:
            after.setdefault("status", before["status"])
        kept = {name: held[name] for name in KEPT if name in held}
        metadata = {"creationTimestamp": self.created_at} | kept | after.get("metadata", {})
        metadata |= {"resourceVersion": held.get("resourceVersion"), "generation": held.get("generation", 0)}
        after |= {"kind": KINDS[key[0]], "metadata": metadata}
        if after == before:
            return after
        metadata["generation"] += 1
        metadata["resourceVersion"] = str(self.version + 1)
        if not dry_run:
            self.version += 1
            self.objects[key] = after
            self._record("MODIFIED" if before else "ADDED", key, after)
        return after

    def _delete(self, key: Key, options: Json) -> None:
        self._remove(key)

    def _remove(self, key: Key) -> None:
        self.version += 1
        gone = self.objects.pop(key)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._record("DELETED", key, gone)

    def _record(self, kind: str, key: Key, found: Json) -> None:
        event = {"type": kind, "object": copy.deepcopy(found)}
        self._history.append((key, event))
        for queue, call in self._watchers.items():
            if _selected(key, found, call):
                queue.put_nowait(event)


class MemoryApi(ApiObjects, ObjectClient):
    """Takes the requests of a `KubeClient`, in the same event loop and without HTTP."""

    async def send(self, request: ApiRequest, **_: object) -> ApiResponse:
        call = _call(request)
        self.receive(call)
        # Other tasks run between a request and its answer: races need that.
        await asyncio.sleep(0)
        await self.answering.wait()
        return ApiResponse(*self.answer(call))

    async def watch(
        self, request: ApiRequest, *, opened: Callable[[int], None] = lambda _: None, **_: object
    ) -> AsyncGenerator[Json, None]:
        queue = self.open_watch(_call(request))
        try:
            opened(200)
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self.close_watch(queue)

    async def aclose(self) -> None:
        self.end_watches()


def failing(method: str, part: str, error: Exception) -> Fault:
    """Fails calls of this method ("" for all) whose path contains this part."""

    def fault(call: Call) -> None:
        if method in ("", call.method) and part in call.path:
            raise error

    return fault


def status_of(error: KubeError) -> Json:
    return {"kind": "Status", "code": error.status, "reason": error.reason, "message": error.message}


def query_of(text: str) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(text).items()}


def _call(request: ApiRequest) -> Call:
    headers = {"content-type": request.content_type}
    return Call(request.method, request.path, dict(request.query), request.body, headers)


def _parse(path: str) -> tuple[Key, str]:
    """Returns the key and the subresource; without a name, the path is that of a collection."""
    words = [unquote(word) for word in path.strip("/").split("/")]
    words = words[{"api": 2, "apis": 3}.get(words[0], len(words)) :]
    namespace = ""
    if words[:1] == ["namespaces"] and len(words) > 2 and words[2] not in ("status", "finalize"):
        namespace, words = words[1], words[2:]
    if not words or words[0] not in (*KINDS, "tokenreviews"):
        raise KubeError(404, "NotFound", "the server could not find the requested resource")
    plural, name, subresource = [*words, "", ""][:3]
    return (plural, namespace, name), subresource


def _selected(key: Key, found: Json, call: Call) -> bool:
    (plural, namespace, _), _ = _parse(call.path)
    if key[0] != plural or namespace not in ("", key[1]):
        return False
    labels = found["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in _pairs(call, "labelSelector")) and all(
        _field(found, name) == value for name, value in _pairs(call, "fieldSelector")
    )


def _pairs(call: Call, selector: str) -> list[tuple[str, str]]:
    parts = (part.partition("=") for part in call.query.get(selector, "").split(",") if part)
    return [(name, value) for name, _, value in parts]


def _field(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = found.get(name, {})
    return found


def _expect(value: str | None, found: Json, name: str) -> None:
    if value != found["metadata"][name]:
        raise KubeError(409, "Conflict", f"the object has been modified: {name}")


def _merged(before: Any, patch: Any) -> Any:
    if not isinstance(before, dict) or not isinstance(patch, dict):
        return patch
    return before | {name: _merged(before.get(name), value) for name, value in patch.items()}
