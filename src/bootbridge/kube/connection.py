"""One HTTP/1.1 connection to the API server: asyncio streams for bytes, h11 for the protocol."""

from __future__ import annotations

import asyncio
import socket

import h11

from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.requests import Request

READ_BYTES = 65536
# A watch may be silent for minutes; these find a vanished API server within half a minute.
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))


class ClosedUnanswered(ConnectionError):
    """The connection ended before a single byte of the answer came."""


class Connection:
    """Carries one request at a time; ``reusable`` says whether another may follow."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self.idle_since = 0.0

    @classmethod
    async def open(cls, access: ClusterAccess) -> Connection:
        if access.tls is None:
            reader, writer = await asyncio.open_connection(access.host, access.port)
        else:
            reader, writer = await asyncio.open_connection(
                access.host, access.port, ssl=access.tls.context(), server_hostname=access.server_name
            )
        _keep_alive(writer)
        return cls(reader, writer)

    async def ask(self, request: Request, access: ClusterAccess, user_agent: str) -> h11.Response:
        payload = request.payload()
        head = h11.Request(
            method=request.method,
            target=access.base_path + request.target,
            headers=_headers(
                access, user_agent, payload, request.content_type if request.body is not None else ""
            ),
        )
        out = self._http.send(head) or b""
        if payload:
            out += self._http.send(h11.Data(payload)) or b""
        out += self._http.send(h11.EndOfMessage()) or b""
        try:
            self._writer.write(out)
            await self._writer.drain()
            await self._receive()
        except ClosedUnanswered:
            raise
        except OSError as error:
            raise ClosedUnanswered(str(error)) from error
        return await self._response_head()

    async def chunk(self) -> bytes:
        """The next piece of the answer's body as it arrives; empty at its end."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if event is not h11.NEED_DATA:
                return b""
            self._http.receive_data(await self._reader.read(READ_BYTES))

    @property
    def reusable(self) -> bool:
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return self._http.our_state is h11.IDLE and not self._reader.at_eof()

    def abort(self) -> None:
        """Close at once: a farewell in TLS would only be waited for by a peer that may be gone."""
        self._writer.transport.abort()

    async def _receive(self) -> None:
        data = await self._reader.read(READ_BYTES)
        if not data:
            raise ClosedUnanswered("the connection was closed without an answer")
        self._http.receive_data(data)

    async def _response_head(self) -> h11.Response:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                return event
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))


def _headers(
    access: ClusterAccess, user_agent: str, payload: bytes, content_type: str
) -> list[tuple[str, str]]:
    headers = [("Host", access.authority), ("User-Agent", user_agent), ("Accept", "application/json")]
    if access.token:
        headers.append(("Authorization", f"Bearer {access.token.current()}"))
    if content_type:
        headers += [("Content-Type", content_type), ("Content-Length", str(len(payload)))]
    return headers


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
