"""Endpoints: the TCP connections that an agent makes on behalf of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bootbridge.ports.byte_ports import ByteHandler, BytePort, PendingDial
from bootbridge.ports.close_states import ENDPOINT, Event, State
from bootbridge.tunnel.dial_record import CANCELLED, REFUSED, TIMED_OUT, DialRecord
from bootbridge.tunnel.packet_stream import Receiver, SendQueue
from bootbridge.tunnel.route import DISCARD
from bootbridge.wire import packets as p

if TYPE_CHECKING:
    from bootbridge.tunnel.agent_core import ServerStream


AGENT_TO_ENDPOINT: Final = "agent to endpoint"


class EndpointDial:
    """A pending DIAL_REQ; the server may cancel it with DIAL_CLS."""

    __slots__ = ("_server", "address", "pending", "random", "record")

    def __init__(self, server: ServerStream, address: str, random: int, record: DialRecord) -> None:
        self._server = server
        self.record = record
        self.address = address
        self.random = random
        self.pending: PendingDial | None = None

    def __repr__(self) -> str:
        return f"<EndpointDial {self.address}>"

    def cancel(self) -> None:
        """The server has withdrawn it, or is lost."""
        if self.pending is not None:
            self.pending.cancel()
        server = self._server
        reason = "server lost" if server.ended else "cancelled by the server"
        server.core.dial_history.failed(self.record, server.timers.now(), CANCELLED, "", reason)

    def on_dialled(self, port: BytePort) -> ByteHandler:
        server = self._server
        server.dials.pop(self.random, None)
        server.core.dial_history.established(self.record, server.timers.now())
        server.core.metrics.dial_duration_seconds.observe(self.record.connect_seconds)
        endpoint = Endpoint(server, server.next_connect_id(), port, self.address, self.record)
        server.add_endpoint(endpoint)
        server.send(p.DialResponse("", endpoint.connect_id, self.random))
        return endpoint

    def on_dial_failed(self, error: str, timed_out: bool) -> None:
        server = self._server
        server.dials.pop(self.random, None)
        server.next_connect_id()  # as upstream does, so that ids in logs can be compared
        reason = "timeout" if timed_out else "unknown"
        server.core.metrics.endpoint_dial_failure_total.labels(reason).value += 1
        server.core.event_log.info("dial failed", address=self.address, reason=error)
        outcome = TIMED_OUT if timed_out else REFUSED
        server.core.dial_history.failed(self.record, server.timers.now(), outcome, AGENT_TO_ENDPOINT, error)
        server.send(p.DialResponse(error, 0, self.random))


class Endpoint:
    """One connection: its socket on one side, its send queue and receiver on the server's stream."""

    __slots__ = (
        "_port",
        "_server",
        "address",
        "connect_id",
        "on_bytes",
        "on_drained",
        "receiver",
        "record",
        "send_queue",
        "state",
    )

    def __init__(
        self, server: ServerStream, connect_id: int, port: BytePort, address: str, record: DialRecord
    ) -> None:
        self._server = server
        self._port = port
        self.address = address
        self.record = record
        self.connect_id = connect_id
        self.state: State = State.OPEN
        self.send_queue = SendQueue(server, connect_id, port)
        self.receiver = Receiver(server, connect_id, port, self)
        self.on_bytes: Callable[[memoryview], None] = self.send_queue.write
        self.on_drained: Callable[[], None] = self.receiver.drained

    def __repr__(self) -> str:
        return f"<Endpoint {self.connect_id} {self.address} {self.state} ↓{self.send_queue.backlog}B>"

    @property
    def bytes_up(self) -> int:
        """Bytes received from the server."""
        return self.receiver.written

    @property
    def bytes_down(self) -> int:
        """Bytes sent to the server."""
        return self.send_queue.sent

    @property
    def queued_up(self) -> int:
        return self.receiver.sink.backlog

    @property
    def queued_down(self) -> int:
        return self.send_queue.backlog

    def _move(self, event: Event) -> bool:
        """Follows the table; True if the state changed."""
        before = self.state
        self.state = ENDPOINT.after(before, event)
        return self.state is not before

    # --- from the socket

    def on_eof(self, gone: bool) -> None:
        half_closed = self._server.extension.half_close and not gone
        self._move(Event.ENDPOINT_ENDS if half_closed else Event.ENDPOINT_CLOSED)
        if self.state is State.CLOSING:
            self._close_behind_data("", "endpoint closed")
        else:
            self.send_queue.then(p.End(self.connect_id))

    def on_lost(self, reason: str) -> None:
        self._move(Event.ENDPOINT_LOST)
        self._close_behind_data(reason, "endpoint connection lost")

    def _close_behind_data(self, error: str, reason: str) -> None:
        """Closes the socket, and sends CLOSE_RSP behind the rest of the download."""
        self._stop(reason)
        self._port.close()
        self.send_queue.then(p.CloseResponse(error, self.connect_id), self._flushed)

    # --- from the server

    def on_server_ended(self) -> None:
        """END: the caller half-closed."""
        if self._move(Event.CALLER_ENDS):
            if self.state is State.CLOSING:
                self._close_behind_data("", "both ends closed")
            else:
                self._port.finish()

    def on_close_request(self) -> None:
        """CLOSE_REQ: drops the download, and closes the socket behind the rest of the upload."""
        if self._close_on_request(Event.CLOSE_REQUESTED, "server closed"):
            self._port.close()

    def on_reset_request(self) -> None:
        """RESET: as CLOSE_REQ, but the upload is incomplete, so the endpoint must see a reset."""
        if self._close_on_request(Event.RESET_REQUESTED, "server reset"):
            self._port.abort()

    def _close_on_request(self, event: Event, reason: str) -> bool:
        """Answers CLOSE_RSP; returns True if the socket is still to be closed."""
        was_closing = self.state is State.CLOSING
        self._move(event)
        self.send_queue.discard()
        if not was_closing:
            self._stop(reason)
        self._server.send(p.CloseResponse("", self.connect_id))
        self._server.forget_endpoint(self)
        return not was_closing

    def on_server_lost(self) -> None:
        """The upload may be incomplete, so the endpoint must see a reset."""
        was_closing = self.state is State.CLOSING
        self._move(Event.STREAM_LOST)
        self.send_queue.discard()
        if not was_closing:
            self._stop("server lost")
            self._port.abort()

    def close_overrun(self, reason: str) -> None:
        self._server.core.event_log.warning(
            "connection closed: endpoint stalled",
            address=self.address,
            connection=self.connect_id,
            reason=reason,
        )
        self._move(Event.OVERRUN)
        self._stop("stalled endpoint")
        self._port.abort()
        self.send_queue.discard()
        self.send_queue.then(p.CloseResponse(f"endpoint stalled: {reason}", self.connect_id), self._flushed)

    def close_for_drain(self) -> None:
        """The agent ends. Neither side has ended, so both see a loss."""
        self._move(Event.ENDPOINT_LOST)
        self._stop("agent drained")
        self._port.abort()
        self.send_queue.then(p.CloseResponse("the agent is stopping", self.connect_id), self._flushed)

    def _stop(self, reason: str) -> None:
        """Stops both directions; called once, when the endpoint leaves the states in which it is open."""
        self.on_bytes = _discard
        if self._server.guard is not None:
            self._server.guard.forget(self.receiver)
        self.receiver.sink = DISCARD
        self._server.core.metrics.closed_connections_total.labels(reason).value += 1

    def _flushed(self) -> None:
        self._move(Event.FLUSHED)
        self._server.forget_endpoint(self)


def _discard(data: memoryview) -> None:
    return None
