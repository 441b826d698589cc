"""Endpoints: the TCP connections that an agent makes on behalf of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bootbridge.ports.byte_ports import ByteHandler, BytePort, PendingDial
from bootbridge.tunnel.packet_stream import Receiver, SendQueue
from bootbridge.tunnel.route import NOWHERE
from bootbridge.wire import packets as p

if TYPE_CHECKING:
    from bootbridge.tunnel.agent_core import ServerStream


class EndpointDial:
    """A DIAL_REQ that is being worked on; the server may call it off with DIAL_CLS."""

    __slots__ = ("_server", "_started_at", "address", "pending", "random")

    def __init__(self, server: ServerStream, address: str, random: int) -> None:
        self._server = server
        self._started_at = server.timers.now()
        self.address = address
        self.random = random
        self.pending: PendingDial | None = None

    def __repr__(self) -> str:
        return f"<EndpointDial {self.address}>"

    def cancel(self) -> None:
        if self.pending is not None:
            self.pending.cancel()

    def on_dialled(self, port: BytePort) -> ByteHandler:
        server = self._server
        server.dials.pop(self.random, None)
        server.core.metrics.dial_duration_seconds.observe(server.timers.now() - self._started_at)
        endpoint = Endpoint(server, server.next_connect_id(), port, self.address)
        server.add_endpoint(endpoint)
        server.send(p.DialResponse("", endpoint.connect_id, self.random))
        return endpoint

    def on_dial_failed(self, error: str, timed_out: bool) -> None:
        server = self._server
        server.dials.pop(self.random, None)
        server.next_connect_id()  # upstream burns one too; ids stay comparable in logs
        reason = "timeout" if timed_out else "unknown"
        server.core.metrics.endpoint_dial_failure_total.labels(reason).value += 1
        server.core.event_log.info("dial failed", address=self.address, why=error)
        server.send(p.DialResponse(error, 0, self.random))


class Endpoint:
    """One connection: its socket on one side, its send queue and receiver on the server's stream."""

    __slots__ = (
        "_closing",
        "_ended",
        "_port",
        "_server",
        "_server_ended",
        "address",
        "connect_id",
        "on_bytes",
        "on_drained",
        "receiver",
        "send_queue",
    )

    def __init__(self, server: ServerStream, connect_id: int, port: BytePort, address: str) -> None:
        self._server = server
        self._port = port
        self.address = address
        self.connect_id = connect_id
        self.send_queue = SendQueue(server, connect_id, port)
        self.receiver = Receiver(server, connect_id, port, self)
        self.on_bytes: Callable[[memoryview], None] = self.send_queue.write
        self.on_drained: Callable[[], None] = self.receiver.drained
        self._ended = False
        self._server_ended = False
        self._closing = False

    def __repr__(self) -> str:
        state = "closing" if self._closing else "open"
        return f"<Endpoint {self.connect_id} {self.address} {state} ↓{self.send_queue.backlog}B>"

    # --- from the socket

    def on_eof(self, gone: bool) -> None:
        if self._closing or self._ended:
            return
        self._ended = True
        if self._server.extension.half_close and not self._server_ended and not gone:
            self.send_queue.then(p.End(self.connect_id))
        else:
            self._close_behind_data("", "endpoint closed")

    def on_lost(self, reason: str) -> None:
        if not self._closing:
            self._close_behind_data(reason, "endpoint broke")

    def _close_behind_data(self, error: str, reason: str) -> None:
        """The endpoint is done; what it said still reaches the server, then CLOSE_RSP."""
        self._start_closing(reason)
        self._port.close()
        self.send_queue.then(p.CloseResponse(error, self.connect_id), self._forget)

    # --- from the server

    def on_server_ended(self) -> None:
        """END: the caller sends no more, but still reads."""
        if self._closing or self._server_ended:
            return
        self._server_ended = True
        if self._ended:
            self._close_behind_data("", "both ends closed")
        else:
            self._port.finish()

    def on_close_request(self) -> None:
        """CLOSE_REQ: nobody reads any more; what was uploaded is still written before the end."""
        self.send_queue.discard()
        if not self._closing:
            self._start_closing("server closed")
            self._port.close()
        self._server.send(p.CloseResponse("", self.connect_id))
        self._forget()

    def on_server_lost(self) -> None:
        """The upload may be incomplete: the endpoint must not take it for a whole one."""
        self.send_queue.discard()
        if not self._closing:
            self._start_closing("server lost")
            self._port.abort()

    def close_overrun(self, reason: str) -> None:
        self._server.core.event_log.warning(
            "connection closed: its endpoint does not keep up",
            address=self.address,
            connection=self.connect_id,
            why=reason,
        )
        self._start_closing("stalled endpoint")
        self._port.abort()
        self.send_queue.discard()
        self.send_queue.then(p.CloseResponse(f"endpoint stalled: {reason}", self.connect_id), self._forget)

    def _start_closing(self, reason: str) -> None:
        self._closing = True
        self.on_bytes = _discard
        if self._server.guard is not None:
            self._server.guard.forget(self.receiver)
        self.receiver.sink = NOWHERE
        self._server.core.metrics.closed_connections_total.labels(reason).value += 1

    def _forget(self) -> None:
        self._server.forget_endpoint(self)


def _discard(data: memoryview) -> None:
    return None
