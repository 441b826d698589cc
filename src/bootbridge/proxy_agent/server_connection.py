"""One connection to one server: dial, TLS handshake, Connect stream."""

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
# Includes the server's review of our token.
CONNECT_STREAM_SECONDS_MAX: Final = 30.0


class NotConnected(Exception):
    """Connecting to a server failed; the message is for the operator."""


class ServerConnection:
    """A connection; the server set holds it once the server has answered Connect."""

    def __init__(self, pump: Pump, core: AgentCore, keepalive_seconds: float) -> None:
        self._pump = pump
        self._core = core
        self._keepalive_seconds = keepalive_seconds
        self._transport: Http2Transport | None = None
        self.stream: ServerStream | None = None
        self.address = ""
        self.on_lost: Callable[[ServerConnection, str], None] = lambda connection, reason: None

    async def open(
        self, host: str, address: str, port: int, tls: TlsFiles, token: str | None
    ) -> ServerStream:
        """Returns the stream of a server that has answered Connect; raises NotConnected."""
        self.address = address
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX + CONNECT_STREAM_SECONDS_MAX):
                sock = await self._dial(address, port)
                stream = await self._tls_handshake(sock, host, tls)
                return await self._open_stream(stream, join_host_port(host, port), token)
        except TimeoutError:
            self.close("timed out")
            raise NotConnected("timed out") from None
        except BaseException:
            self.close("cancelled")
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

    async def _tls_handshake(self, sock: socket.socket, host: str, tls: TlsFiles) -> TlsStream:
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
            raise NotConnected("ALPN protocol h2 not negotiated")
        return stream

    async def _open_stream(self, stream: TlsStream, authority: str, token: str | None) -> ServerStream:
        done: asyncio.Future[ServerStream] = self._pump.loop.create_future()

        def answered(server: ServerStream) -> None:
            if done.done():
                return
            if server.connected and not server.ended:
                done.set_result(server)
            else:
                done.set_exception(NotConnected(server.error or "stream closed by server"))

        self._transport = Http2Transport(stream, client=True, keepalive_seconds=self._keepalive_seconds)
        self.stream = self._core.connect(self._transport.http2, authority, token, answered)
        self._pump.end_turn()
        server = await done
        server.on_ended = lambda ended: self._on_ended(ended.error)
        if server.ended:
            raise NotConnected(server.error)
        return server

    def _on_ended(self, reason: str) -> None:
        self.close(reason)
        self.on_lost(self, reason)

    def on_leaving(self, announced: Callable[[], None]) -> None:
        """Calls it when the server announces its shutdown (GOAWAY)."""
        if self._transport is not None:
            self._transport.http2.on_goaway = lambda code, text: announced()
            if self._transport.http2.peer_going_away:
                announced()

    @property
    def has_unsent(self) -> bool:
        return self._transport is not None and self._transport.has_unsent

    def close(self, reason: str) -> None:
        if self.stream is not None:
            self.stream.closed_by_us = True
        if self._transport is not None:
            self._transport.close(reason)
            self._pump.end_turn()
