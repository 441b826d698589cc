"""One connection to one server: dialled, secured, accepted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from bootbridge.runtime.byte_stream import set_user_timeout
from bootbridge.runtime.dialler import SocketDial
from bootbridge.runtime.endpoint_policy import TcpEndpoint
from bootbridge.runtime.http2_transport import Http2Transport
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.tls_files import TlsFiles
from bootbridge.runtime.tls_stream import TlsStream
from bootbridge.tunnel.agent_core import AgentCore, ServerStream
from bootbridge.wire.addresses import join_host_port

CONNECT_SECONDS_MAX: Final = 20.0
# A server may have to review our token first; longer than this is no answer.
GREETING_SECONDS_MAX: Final = 30.0


class NotConnected(Exception):
    """Why a server could not be reached, in words for the operator."""


class ServerConnection:
    """Held by the server set from its greeting to its end."""

    def __init__(self, pump: Pump, core: AgentCore, keepalive_seconds: float) -> None:
        self._pump = pump
        self._core = core
        self._keepalive_seconds = keepalive_seconds
        self._transport: Http2Transport | None = None
        self._stream: ServerStream | None = None
        self.on_lost: Callable[[ServerConnection, str], None] = lambda connection, reason: None

    async def open(
        self, host: str, address: str, port: int, tls: TlsFiles, token: str | None
    ) -> ServerStream:
        """Raises NotConnected, or returns the stream of a server that has answered us."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX + GREETING_SECONDS_MAX):
                sock = await self._dial(address, port)
                stream = await self._secure(sock, host, tls)
                return await self._send_preface(stream, join_host_port(host, port), token)
        except TimeoutError:
            self.close("timed out")
            raise NotConnected("the server did not answer in time") from None
        except BaseException:
            self.close("given up")
            raise

    async def _dial(self, address: str, port: int) -> socket.socket:
        done: asyncio.Future[socket.socket] = self._pump.loop.create_future()

        def failed(reason: str, timed_out: bool) -> None:
            if not done.done():
                done.set_exception(NotConnected(reason))

        def connected(sock: socket.socket) -> None:
            if done.done():
                sock.close()
            else:
                done.set_result(sock)

        dial = SocketDial(self._pump, TcpEndpoint(address, port), CONNECT_SECONDS_MAX, connected, failed)
        try:
            return await done
        except asyncio.CancelledError:
            dial.cancel()
            raise

    async def _secure(self, sock: socket.socket, host: str, tls: TlsFiles) -> TlsStream:
        set_user_timeout(sock)
        done: asyncio.Future[TlsStream] = self._pump.loop.create_future()

        def failed(reason: str) -> None:
            if not done.done():
                done.set_exception(NotConnected(reason))

        def ready(stream: TlsStream) -> None:
            if not done.done():
                done.set_result(stream)

        stream = TlsStream(self._pump, sock, tls.context(), server_name=host, ready=ready, failed=failed)
        self._pump.end_turn()
        try:
            await done
        except asyncio.CancelledError:
            stream.abort()
            raise
        if stream.alpn is None:
            stream.close()
            raise NotConnected("the server does not speak HTTP/2 over TLS (no ALPN protocol agreed on)")
        return stream

    async def _send_preface(self, stream: TlsStream, authority: str, token: str | None) -> ServerStream:
        done: asyncio.Future[ServerStream] = self._pump.loop.create_future()

        def on_answer(server: ServerStream) -> None:
            if done.done():
                return
            if server.connected and not server.ended:
                done.set_result(server)
            else:
                done.set_exception(NotConnected(server.error or "the server closed the stream"))

        self._transport = Http2Transport(stream, client=True, keepalive_seconds=self._keepalive_seconds)
        self._stream = self._core.connect(self._transport.http2, authority, token, on_answer)
        self._pump.end_turn()
        server = await done
        server.on_ended = lambda ended: self._on_ended(ended.error)
        if server.ended:
            raise NotConnected(server.error)
        return server

    def _on_ended(self, reason: str) -> None:
        self.close(reason)
        self.on_lost(self, reason)

    def on_leaving(self, told: Callable[[], None]) -> None:
        """``told`` hears it when the server announces that it goes away."""
        if self._transport is not None:
            self._transport.http2.on_goaway = lambda code, text: told()
            if self._transport.http2.peer_going_away:
                told()

    @property
    def has_unsent(self) -> bool:
        return self._transport is not None and self._transport.has_unsent

    def close(self, reason: str) -> None:
        if self._stream is not None:
            self._stream.closed_by_us = True
        if self._transport is not None:
            self._transport.close(reason)
            self._pump.end_turn()
