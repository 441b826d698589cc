"""A small HTTP/1.1 server for health, metrics and status: GET and HEAD only.

h11 implements the protocol; this module transfers the bytes and sets the limits.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11

from bootbridge.errors import OperatorError
from bootbridge.runtime import logs
from bootbridge.runtime.accept_rate import AcceptRate
from bootbridge.runtime.connection_limits import ConnectionLimits
from bootbridge.runtime.tasks import spawn
from bootbridge.wire.addresses import source_of

# How long a connection may be idle between requests (a scraper keeps it), or leave a response unread.
TIMEOUT_SECONDS = 60
# How long the first request may take, and each later one from its first byte.
HEAD_SECONDS = 5
# A scraper's request is below 1 KiB, a browser with many cookies below this.
HEAD_BYTES_MAX = 64 * 1024
READ_BYTES = 16 * 1024
# Far more than probes and scrapers need, far fewer than our file descriptors; half of them for one source.
# At the limit the connection that was used least recently is closed: a probe always gets in.
CONNECTIONS_MAX = 64
CONNECTIONS_MIN = 8
DESCRIPTORS_SHARE = 16
# With more, in a flood, the limit would close a probe's connection before its request is read.
ACCEPTS_PER_ROUND = 2
BACKLOG = 1024
# Pause after a failed accept, for example without free file descriptors.
ACCEPT_RETRY_SECONDS = 0.1

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class AdminRequest:
    """The parts of a request that routes use."""

    path: str
    query: Mapping[str, str]
    host: str


@dataclass(frozen=True)
class AdminResponse:
    body: str = ""
    status: int = 200
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


Route = Callable[[AdminRequest], AdminResponse | Awaitable[AdminResponse]]


class AdminServer:
    """Serves `routes` by exact path until closed."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        self._routes = dict(routes)
        self._timeout = timeout_seconds
        self._head_seconds = head_seconds
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        total = max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, descriptors // DESCRIPTORS_SHARE))
        self._limits: ConnectionLimits[_Peer] = ConnectionLimits(
            total, total // 2, time.monotonic, grace_seconds=0.0
        )
        self._connections: set[_Peer] = set()
        self._rate = AcceptRate(time.monotonic)
        self._listeners: list[socket.socket] = []

    async def start(self, host: str, port: int, *, subject: str = "--health-port") -> None:
        """Listens; an empty host means all interfaces. Errors name `subject`, the flag."""
        for listener in await _bind(host, port, subject):
            listener.setblocking(False)
            listener.listen(BACKLOG)
            self._listeners.append(listener)
            self._watch(listener)

    @property
    def port(self) -> int:
        port: int = self._listeners[0].getsockname()[1]
        return port

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def close(self) -> None:
        """Stops listening and closes every connection."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        tasks = [connection.task for connection in connections if connection.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _watch(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_ROUND):
            if not self._rate.permits():
                self._pause(listener, self._rate.pause_seconds)
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logs.event("admin", logs.WARNING, "accept failed", reason=error.strerror)
                self._pause(listener, ACCEPT_RETRY_SECONDS)
                return
            self._rate.count()
            sock.setblocking(False)
            peer = _Peer(sock, source_of(address[0]), self._head_seconds, self._serve, self._forget)
            self._connections.add(peer)
            self._mark_used(peer)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())
        loop.call_later(seconds, self._watch, listener)

    async def _serve(self, peer: _Peer) -> None:
        reader, writer = await asyncio.open_connection(sock=peer.sock)
        # `drain` then returns when our kernel has everything, so closing never waits for the peer.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            connection = _Connection(reader, writer, self._routes, self._timeout, self._head_seconds)
            await connection.run(lambda: self._mark_used(peer))
            writer.close()
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            # The peer left or is too slow, newer connections replace it, or `close` was called.
            writer.transport.abort()

    def _mark_used(self, peer: _Peer) -> None:
        """Makes this connection the most recent one; closes the least recent one if there are too many."""
        self._limits.remove(peer.source, peer)
        evicted = self._limits.add(peer.source, peer)
        if evicted is not None:
            evicted.close()

    def _forget(self, peer: _Peer) -> None:
        self._connections.discard(peer)
        self._limits.remove(peer.source, peer)


class _Peer:
    """An accepted socket. Streams, parser and task are created with its first bytes: in a flood of idle
    connections each costs a fifth."""

    __slots__ = ("_forget", "_serve", "_timer", "sock", "source", "task")

    def __init__(
        self,
        sock: socket.socket,
        source: str,
        first_bytes_seconds: float,
        serve: Callable[[_Peer], Coroutine[Any, Any, None]],
        forget: Callable[[_Peer], None],
    ) -> None:
        self.sock, self.source = sock, source
        self.task: asyncio.Task[None] | None = None
        self._serve, self._forget = serve, forget
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(first_bytes_seconds, self.close)
        loop.add_reader(sock.fileno(), self._on_first_bytes)

    def _on_first_bytes(self) -> None:
        self._stop_waiting()
        self.task = spawn(self._serve(self), "admin connection")
        self.task.add_done_callback(self._on_served)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before it had streams, which close the socket themselves
            self.sock.close()
        self._forget(self)

    def close(self) -> None:
        """Closes it at once, in every state."""
        if self.task is not None:
            self.task.cancel()
            return
        self._stop_waiting()
        self.sock.close()
        self._forget(self)

    def _stop_waiting(self) -> None:
        self._timer.cancel()
        asyncio.get_running_loop().remove_reader(self.sock.fileno())


class _Connection:
    """One connection: requests and responses in turn."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        routes: Mapping[str, Route],
        timeout: float,
        head_seconds: float,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._routes = routes
        self._timeout = timeout
        self._head_seconds = head_seconds
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)

    async def run(self, on_request: Callable[[], None]) -> None:
        wait_seconds = self._head_seconds
        while True:
            try:
                request = await self._next_request(wait_seconds)
            except h11.RemoteProtocolError as error:
                await self._refuse(error)
                return
            if request is None:
                return
            on_request()
            wait_seconds = self._timeout
            await self._send(request.method, await self._answer(request))
            if not self._start_over():
                return

    async def _next_request(self, wait_seconds: float) -> h11.Request | None:
        """Waits for the first byte of a request, and then for the rest of its head."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        begun = False
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            # Not asyncio.wait_for: on Python 3.11 it can swallow a cancellation.
            async with asyncio.timeout_at(deadline):
                data = await self._reader.read(READ_BYTES)
            if not begun:
                begun = True
                deadline = min(deadline, loop.time() + self._head_seconds)
            self._http.receive_data(data)

    async def _answer(self, request: h11.Request) -> AdminResponse:
        if request.method not in (b"GET", b"HEAD"):
            method = request.method.decode("ascii", "replace")
            headers = (("Allow", "GET, HEAD"),)
            return AdminResponse(f"method {method} not allowed: use GET\n", 405, headers=headers)
        asked = _parse(request, self._writer)
        route = self._routes.get(asked.path)
        if route is None:
            return AdminResponse("404 page not found\n", 404)
        try:
            answer = route(asked)
            return answer if isinstance(answer, AdminResponse) else await answer
        except Exception as error:
            logs.event("admin", logs.ERROR, "request failed", path=asked.path, reason=repr(error))
            return AdminResponse("internal error, see the log\n", 500)

    async def _send(self, method: bytes, response: AdminResponse) -> None:
        body = response.body.encode()
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(body))),
            ("X-Content-Type-Options", "nosniff"),
            *response.headers,
        ]
        if self._has_body():
            headers.append(("Connection", "close"))
        reason = HTTPStatus(response.status).phrase
        out = (
            self._http.send(h11.Response(status_code=response.status, headers=headers, reason=reason)) or b""
        )
        if method != b"HEAD" and body:
            out += self._http.send(h11.Data(data=body)) or b""
        self._writer.write(out + (self._http.send(h11.EndOfMessage()) or b""))
        async with asyncio.timeout(self._timeout):
            await self._writer.drain()

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send(b"GET", AdminResponse(f"{error}\n", error.error_status_hint))

    def _has_body(self) -> bool:
        """Whether the request has a body; no route accepts one, so the connection ends."""
        try:
            end = self._http.next_event()
        except h11.RemoteProtocolError:
            return True
        return not isinstance(end, h11.EndOfMessage)

    def _start_over(self) -> bool:
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True


def _parse(request: h11.Request, writer: asyncio.StreamWriter) -> AdminRequest:
    path, _, query = request.target.decode("ascii", "replace").partition("?")
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    headers = {name: value for name, value in request.headers if name == b"host"}
    host = headers.get(b"host", b"").decode("ascii", "replace") or _own_address(writer)
    return AdminRequest(path, {key: value for key, _, value in pairs}, host)


def _own_address(writer: asyncio.StreamWriter) -> str:
    address: str = writer.get_extra_info("sockname")[0]
    return f"[{address}]" if ":" in address else address


async def _bind(host: str, port: int, subject: str) -> list[socket.socket]:
    """Returns listening sockets for all addresses of `host`, or raises and leaves none open."""
    if not host:
        return [_bind_everywhere(port, subject)]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        text = f"cannot listen on {host}: {getattr(error, 'strerror', '') or error}"
        hint = "check the bind address of this port"
        raise OperatorError(text, subject=subject, hint=hint) from error
    listeners: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            listeners.append(_bound(family, address, subject))
    except OperatorError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind_everywhere(port: int, subject: str) -> socket.socket:
    """One socket for both families; IPv4 only where IPv6 is missing or disabled."""
    if socket.has_dualstack_ipv6() and _ipv6_is_on():
        return _bound(socket.AF_INET6, ("::", port), subject, dualstack_ipv6=True)
    return _bound(socket.AF_INET, ("0.0.0.0", port), subject)


def _ipv6_is_on() -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("::", 0))
        except OSError:
            return False
    return True


def _bound(
    family: int, address: tuple[Any, ...], subject: str, *, dualstack_ipv6: bool = False
) -> socket.socket:
    try:
        return socket.create_server(address, family=family, dualstack_ipv6=dualstack_ipv6)
    except OSError as error:
        host, port = address[:2]
        reasons = {
            errno.EADDRINUSE: (
                f"port {port}: address already in use",
                "choose another port, or stop the process that uses it",
            ),
            errno.EACCES: (f"port {port}: permission denied", "choose a port above 1023"),
            errno.EADDRNOTAVAIL: (f"{host}: not an address of this machine", "choose one of its addresses"),
        }
        why = os.strerror(error.errno) if error.errno else str(error)
        message, hint = reasons.get(error.errno or 0, (f"cannot listen on {host} port {port}: {why}", ""))
        raise OperatorError(message, subject=subject, hint=hint) from error
