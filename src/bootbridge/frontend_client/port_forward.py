"""Listens on local ports; each connection is dialled and relayed through the tunnel."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from bootbridge.errors import OperatorError
from bootbridge.frontend_client.call import DialError
from bootbridge.frontend_client.frontend import FrontendAddress, FrontendUnreachable
from bootbridge.frontend_client.relay import Relay, SocketEnd
from bootbridge.frontend_client.tunnel_stream import ConnectionCutError, open_tunnel
from bootbridge.runtime import tasks
from bootbridge.wire.addresses import join_host_port

BACKLOG = 128
_LINGER_ZERO = struct.pack("ii", 1, 0)
_LISTEN_HINTS = {
    errno.EADDRINUSE: "give another port, or 0 for a free one",
    errno.EADDRNOTAVAIL: "give an address of this machine",
    errno.EACCES: "ports below 1024 require root",
}


@dataclass(frozen=True)
class ForwardedConnection:
    """One connection that failed, for the report; `reason` is that of the frontend, the dial or the cut."""

    client: str
    reason: Exception


class PortForward:
    """Forwards connections to `address` until it is closed. ``failed`` gets each connection that failed."""

    def __init__(
        self,
        frontend: FrontendAddress,
        address: str,
        dial_seconds: float,
        linger_seconds: float,
        failed: Callable[[ForwardedConnection], None],
    ) -> None:
        self._frontend = frontend
        self._address = address
        self._dial_seconds = dial_seconds
        self._linger_seconds = linger_seconds
        self._failed = failed
        self._listeners: list[asyncio.Server] = []
        self._open: set[asyncio.Task[None]] = set()
        self.accepted = 0

    async def listen(self, hosts: list[str], port: int) -> list[str]:
        """Listens on all hosts, with the same port; returns the addresses. Port 0 is a free one."""
        for host in hosts:
            try:
                sock = _listening(host, port)
            except OSError as error:
                text = f"cannot listen on {join_host_port(host, port)}: {error.strerror or error}"
                raise OperatorError(text, hint=_LISTEN_HINTS.get(error.errno or 0, "")) from error
            port = sock.getsockname()[1]
            self._listeners.append(await asyncio.start_server(self._accept, sock=sock))
        return [join_host_port(*each.sockets[0].getsockname()[:2]) for each in self._listeners]

    async def close(self) -> None:
        """Stops listening and closes all connections."""
        for listener in self._listeners:
            listener.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = tasks.spawn(self._forward(reader, writer), "forward")
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = join_host_port(*writer.get_extra_info("peername")[:2])
        try:
            tunnel = await open_tunnel(self._frontend, self._address, self._dial_seconds)
            # A client that has closed looks like one that has ended its direction: the end is sent at once.
            linger = 0.0 if tunnel.half_closes else self._linger_seconds
            await Relay(SocketEnd(reader, writer), tunnel, linger).run()
        except (FrontendUnreachable, DialError, ConnectionCutError) as error:
            self._failed(ForwardedConnection(client, error))
            _reset(writer)  # an orderly end would look like an empty answer
        except OSError:
            _reset(writer)  # the client has left
        finally:
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    writer.transport.abort()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
