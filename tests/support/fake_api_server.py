"""A fake kube-apiserver: TLS, authentication, chunked watches, injected faults.

Stores leases with resourceVersions and a history, answers TokenReviews from a table, and selects by
equality labels only, so that it does not use the code under test. `FakeApiThread` runs it in a thread.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from bootbridge.trust.authority import Authority, Certificate

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
TOKEN = "server-side-credential"


class RefusedError(Exception):
    def __init__(self, status: int, reason: str, message: str = "refused", headers: Any = ()) -> None:
        super().__init__(message)
        self.status, self.reason, self.headers = status, reason, list(headers)


class DropError(Exception):
    """Closes the connection without a response."""


@dataclass
class Call:
    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass
class FakeApiServer:
    folder: Path
    bearer_tokens: set[str] = field(default_factory=set)
    client_names: set[str] = field(default_factory=set)
    host: str = "127.0.0.1"
    names: tuple[str, ...] = ("127.0.0.1", "::1", "localhost")

    def __post_init__(self) -> None:
        self.authority = Authority.create("kubernetes")
        self.leases: dict[str, dict[str, Any]] = {}
        self.verdicts: dict[str, Any] = {}
        self.calls: list[Call] = []
        self.faults: deque[Callable[[Call], Any]] = deque()
        self.gate = asyncio.Event()
        self.gate.set()
        self.connections_seen = 0
        self.gone_as_status = False
        self.port = 0
        self._version = 100
        self._oldest = 0
        self._history: list[tuple[int, str, dict[str, Any]]] = []
        self._watchers: dict[asyncio.Queue[bytes | None], dict[str, str]] = {}
        self._streams: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._watch_writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FakeApiServer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.authority.issue_server(self.names).write(self.folder, "apiserver"))
        context.load_verify_locations(cadata=self.authority.cert_pem.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        assert self._server
        self._server.close()
        tasks = list(self._streams.values())
        for writer in list(self._streams):
            writer.transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what tests do

    def issue_client(self, name: str) -> Certificate:
        self.client_names.add(name)
        return self.authority.issue_client(name)

    def put_lease(self, name: str, labels: dict[str, str], **spec: Any) -> dict[str, Any]:
        lease = {"metadata": {"name": name, "namespace": "kube-system", "labels": labels}, "spec": spec}
        return self._store("MODIFIED" if name in self.leases else "ADDED", lease)

    def remove_lease(self, name: str) -> None:
        self._store("DELETED", self.leases[name])

    def forget_history(self) -> None:
        """Compacts: older versions cannot be watched from any more."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()

    def bookmark(self) -> None:
        self._version += 1
        event = {
            "type": "BOOKMARK",
            "object": {"kind": "Lease", "metadata": {"resourceVersion": str(self._version)}},
        }
        for queue in self._watchers:
            queue.put_nowait(_line(event))

    def end_watches(self) -> None:
        for queue in self._watchers:
            queue.put_nowait(None)

    def cut_watches(self) -> None:
        for writer in list(self._watch_writers):
            writer.transport.abort()

    def watch_bytes(self, data: bytes) -> None:
        for queue in self._watchers:
            queue.put_nowait(data)

    def cut_idle_connections(self) -> None:
        for writer in list(self._streams):
            writer.transport.abort()

    @property
    def watches(self) -> int:
        return len(self._watchers)

    def calls_to(self, method: str, path: str = "", **query: str) -> list[Call]:
        return [
            call
            for call in self.calls
            if call.method == method and call.path.startswith(path) and query.items() <= call.query.items()
        ]

    # --- how it serves

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_seen += 1
        task = asyncio.current_task()
        assert task
        self._streams[writer] = task
        http = h11.Connection(h11.SERVER)
        try:
            while await self._serve_one(http, reader, writer):
                http.start_next_cycle()
        except (DropError, ConnectionError, asyncio.CancelledError, h11.RemoteProtocolError):
            pass
        finally:
            writer.transport.abort()
            del self._streams[writer]

    async def _serve_one(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        call = await _receive(http, reader)
        if call is None:
            return False
        self.calls.append(call)
        await self.gate.wait()
        try:
            if self.faults:
                self.faults.popleft()(call)
            self._authenticate(call, writer)
            if call.query.get("watch"):
                await self._watch(call, http, reader, writer)
                return False
            status, answer, headers = *self._answer(call), []
        except RefusedError as refusal:
            status, headers = refusal.status, refusal.headers
            answer = {"kind": "Status", "code": status, "reason": refusal.reason, "message": str(refusal)}
        await _reply(http, writer, status, answer, headers)
        return http.our_state is h11.DONE and http.their_state is h11.DONE

    def _authenticate(self, call: Call, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("peercert") or {}
        names = {value for rdn in certificate.get("subject", ()) for key, value in rdn if key == "commonName"}
        bearer = call.headers.get("authorization", "").removeprefix("Bearer ")
        if not names & self.client_names and bearer not in self.bearer_tokens:
            raise RefusedError(401, "Unauthorized", "Unauthorized")

    def _answer(self, call: Call) -> tuple[int, Any]:
        if call.path == REVIEWS and call.method == "POST":
            return 201, {**call.body, "status": self.verdicts.get(call.body["spec"]["token"], {})}
        if call.path == LEASES:
            return self._list(call) if call.method == "GET" else self._create(call)
        if call.path.startswith(LEASES + "/"):
            return self._one(call, unquote(call.path.removeprefix(LEASES + "/")))
        raise RefusedError(404, "NotFound", "the server could not find the requested resource")

    def _list(self, call: Call) -> tuple[int, Any]:
        items = [lease for lease in self.leases.values() if _selected(lease, call)]
        return 200, {"kind": "LeaseList", "metadata": {"resourceVersion": str(self._version)}, "items": items}

    def _create(self, call: Call) -> tuple[int, Any]:
        if call.body["metadata"]["name"] in self.leases:
            raise RefusedError(409, "AlreadyExists", "lease already exists")
        return 201, self._store("ADDED", call.body)

    def _one(self, call: Call, name: str) -> tuple[int, Any]:
        if name not in self.leases:
            raise RefusedError(404, "NotFound", f'leases.coordination.k8s.io "{name}" not found')
        held = self.leases[name]["metadata"]["resourceVersion"]
        if call.method == "GET":
            return 200, self.leases[name]
        wanted = (call.body["metadata"] if call.method == "PUT" else call.body["preconditions"]).get(
            "resourceVersion"
        )
        if wanted != held:
            raise RefusedError(409, "Conflict", "the object has been modified")
        if call.method == "PUT":
            return 200, self._store("MODIFIED", call.body)
        self.remove_lease(name)
        return 200, {"kind": "Status", "status": "Success"}

    def _store(self, kind: str, lease: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        stored = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(self._version)}}
        name = lease["metadata"]["name"]
        if kind == "DELETED":
            del self.leases[name]
        else:
            self.leases[name] = stored
        self._history.append((self._version, kind, stored))
        for queue, query in self._watchers.items():
            if _labels_fit(stored, query.get("labelSelector", "")):
                queue.put_nowait(_line({"type": kind, "object": stored}))
        return stored

    async def _watch(
        self,
        call: Call,
        http: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        since = int(call.query["resourceVersion"])
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        if since < self._oldest:
            if self.gone_as_status:
                raise RefusedError(410, "Expired", "too old resource version")
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            queue.put_nowait(_line({"type": "ERROR", "object": gone}))
            queue.put_nowait(None)
        for version, kind, lease in self._history:
            if version > since and _selected(lease, call):
                queue.put_nowait(_line({"type": kind, "object": lease}))
        client_left = asyncio.ensure_future(reader.read())
        client_left.add_done_callback(lambda _: queue.put_nowait(None))
        self._watchers[queue] = call.query
        self._watch_writers.add(writer)
        try:
            head = h11.Response(status_code=200, headers=[("Transfer-Encoding", "chunked")])
            writer.write(http.send(head) or b"")
            while (data := await queue.get()) is not None:
                writer.write(http.send(h11.Data(data)) or b"")
                await writer.drain()
            writer.write(http.send(h11.EndOfMessage()) or b"")
            await writer.drain()
        finally:
            client_left.cancel()
            await asyncio.gather(client_left, return_exceptions=True)
            del self._watchers[queue]
            self._watch_writers.discard(writer)


class FakeApiThread:
    """A running `FakeApiServer` in a thread, and a kubeconfig for it."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.api = self._run(self._start(folder))
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._document()))

    async def _start(self, folder: Path) -> FakeApiServer:
        return await FakeApiServer(folder, bearer_tokens={TOKEN}).__aenter__()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def do(self, action: Callable[[], Any]) -> Any:
        """Runs it in the server's thread."""

        async def act() -> Any:
            return action()

        return self._run(act())

    def _document(self) -> dict[str, Any]:
        authority = base64.b64encode(self.api.authority.cert_pem).decode()
        cluster = {"server": f"https://127.0.0.1:{self.api.port}", "certificate-authority-data": authority}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
        }

    def stop_listening(self) -> None:
        self._run(self.api.stop())

    def close(self) -> None:
        self.stop_listening()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


def refuse(status: int, reason: str, message: str = "refused", headers: Any = ()) -> Callable[[Call], None]:
    def fault(call: Call) -> None:
        raise RefusedError(status, reason, message, headers)

    return fault


def drop(call: Call) -> None:
    raise DropError


def fine(call: Call) -> None:
    """No fault for this request."""


async def _receive(http: h11.Connection, reader: asyncio.StreamReader) -> Call | None:
    head: h11.Request | None = None
    body = b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and head:
            return _call(head, body)
        else:
            return None


def _call(head: h11.Request, body: bytes) -> Call:
    url = urlsplit(head.target.decode())
    query = {key: values[0] for key, values in parse_qs(url.query).items()}
    headers = {name.decode(): value.decode() for name, value in head.headers}
    return Call(head.method.decode(), url.path, query, json.loads(body) if body else None, headers)


async def _reply(
    http: h11.Connection, writer: asyncio.StreamWriter, status: int, answer: Any, headers: Any
) -> None:
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    head = h11.Response(status_code=status, headers=[("Content-Length", str(len(data))), *headers])
    writer.write((http.send(head) or b"") + (http.send(h11.Data(data)) or b""))
    writer.write(http.send(h11.EndOfMessage()) or b"")
    await writer.drain()


def _line(event: Any) -> bytes:
    return json.dumps(event).encode() + b"\n"


def _selected(lease: dict[str, Any], call: Call) -> bool:
    return _labels_fit(lease, call.query.get("labelSelector", ""))


def _labels_fit(lease: dict[str, Any], selector: str) -> bool:
    labels = lease["metadata"].get("labels", {})
    return all(
        labels.get(key) == value for key, _, value in (p.partition("=") for p in selector.split(",") if p)
    )
