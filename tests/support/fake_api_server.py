"""A fake kube-apiserver over HTTP: TLS, authentication, chunked watches, injected faults.

`ApiThread` runs it in a thread.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11

from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.trust.authority import Authority, Certificate
from tests.support.fake_api_objects import ApiObjects, Call, Fault, Json, query_of, status_of

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
TOKEN = "server-side-credential"


class HangError(Exception):
    """Keeps the connection open without a response."""


class FakeApiServer(ApiObjects):
    """A fault that raises `KubeUnreachable` closes the connection without a response."""

    def __init__(
        self,
        folder: Path,
        bearer_tokens: Iterable[str] = (TOKEN,),
        *,
        host: str = "127.0.0.1",
        names: tuple[str, ...] = ("127.0.0.1", "::1", "localhost"),
    ) -> None:
        super().__init__()
        self.folder, self.host, self.names_served = folder, host, names
        self.bearer_tokens = set(bearer_tokens)
        self.client_names: set[str] = set()
        self.authority = Authority.create("kubernetes")
        self.next_faults: deque[Fault] = deque()  # each for one call
        self.connections_seen = 0
        self.port = 0
        self._streams: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._watch_writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FakeApiServer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate = self.authority.issue_server(self.names_served)
        context.load_cert_chain(*certificate.write(self.folder, "apiserver"))
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

    # --- for tests

    def issue_client(self, name: str) -> Certificate:
        self.client_names.add(name)
        return self.authority.issue_client(name)

    @property
    def leases(self) -> dict[str, Json]:
        return {name: found for (plural, _, name), found in list(self.objects.items()) if plural == "leases"}

    def put_lease(self, name: str, labels: dict[str, str], **spec: Any) -> Json:
        metadata = {"name": name, "namespace": "kube-system", "labels": labels}
        return self.put(f"{LEASES}/{name}", {"metadata": metadata, "spec": spec})

    def remove_lease(self, name: str) -> None:
        self.remove(f"{LEASES}/{name}")

    def cut_watches(self) -> None:
        for writer in list(self._watch_writers):
            writer.transport.abort()

    def cut_idle_connections(self) -> None:
        for writer in list(self._streams):
            writer.transport.abort()

    def kubeconfig(self, port: int = 0) -> Json:
        ca = base64.b64encode(self.authority.cert_pem).decode()
        server = f"https://127.0.0.1:{port or self.port}"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
        }

    # --- HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_seen += 1
        task = asyncio.current_task()
        assert task
        self._streams[writer] = task
        http = h11.Connection(h11.SERVER)
        try:
            while await self._serve_one(http, reader, writer):
                http.start_next_cycle()
        except (KubeUnreachable, ConnectionError, asyncio.CancelledError, h11.RemoteProtocolError):
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
        headers: list[tuple[str, str]] = []
        try:
            self.receive(call)
            await self.answering.wait()
            if self.next_faults:
                self.next_faults.popleft()(call)
            self._authenticate(call, writer)
            if call.query.get("watch"):
                await self._watch(call, http, reader, writer)
                return False
            status, answer = self.answer(call)
        except HangError:
            await asyncio.sleep(60)
            return False
        except KubeError as error:
            status, answer = error.status, status_of(error)
            if error.retry_after:
                headers.append(("Retry-After", f"{error.retry_after:g}"))
        await _reply(http, writer, status, answer, headers)
        return http.our_state is h11.DONE and http.their_state is h11.DONE

    def _authenticate(self, call: Call, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("peercert") or {}
        names = {value for rdn in certificate.get("subject", ()) for key, value in rdn if key == "commonName"}
        bearer = call.headers.get("authorization", "").removeprefix("Bearer ")
        if not names & self.client_names and bearer not in self.bearer_tokens:
            raise KubeError(401, "Unauthorized", "Unauthorized")

    async def _watch(
        self,
        call: Call,
        http: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        queue = self.open_watch(call)
        client_left = asyncio.ensure_future(reader.read())
        client_left.add_done_callback(lambda _: queue.put_nowait(None))
        self._watch_writers.add(writer)
        try:
            head = h11.Response(status_code=200, headers=[("Transfer-Encoding", "chunked")])
            writer.write(http.send(head) or b"")
            while (item := await queue.get()) is not None:
                data = item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n"
                writer.write(http.send(h11.Data(data)) or b"")
                await writer.drain()
            writer.write(http.send(h11.EndOfMessage()) or b"")
            await writer.drain()
        finally:
            client_left.cancel()
            await asyncio.gather(client_left, return_exceptions=True)
            self.close_watch(queue)
            self._watch_writers.discard(writer)


class ApiThread:
    """Runs an API server in a thread, and writes a kubeconfig for it."""

    def __init__(self, api: FakeApiServer) -> None:
        self.api = api
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(api.__aenter__())
        self.kubeconfig = api.folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(api.kubeconfig()))

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def do(self, action: Callable[[], Any]) -> Any:
        """Runs it in the server's thread."""

        async def act() -> Any:
            return action()

        return self._run(act())

    def stop_listening(self) -> None:
        self._run(self.api.stop())

    def close(self) -> None:
        self.stop_listening()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


def refuse(status: int, reason: str, message: str = "refused", retry_after: float = 0) -> Fault:
    def fault(call: Call) -> None:
        raise KubeError(status, reason, message, retry_after)

    return fault


def drop(call: Call) -> None:
    raise KubeUnreachable("dropped")


def hang(call: Call) -> None:
    raise HangError


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
    headers = {name.decode(): value.decode() for name, value in head.headers}
    return Call(
        head.method.decode(), url.path, query_of(url.query), json.loads(body) if body else None, headers
    )


async def _reply(
    http: h11.Connection, writer: asyncio.StreamWriter, status: int, answer: Any, headers: Any
) -> None:
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    head = h11.Response(status_code=status, headers=[("Content-Length", str(len(data))), *headers])
    writer.write((http.send(head) or b"") + (http.send(h11.Data(data)) or b""))
    writer.write(http.send(h11.EndOfMessage()) or b"")
    await writer.drain()
