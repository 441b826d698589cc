"""Frontends: the callers on the apiserver's side, in their two dialects.

Both offer the same few things to a route: a sink for what the endpoint says, a source that
can be paused, and the news (established, refused, end of data, closed) in their own words.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from bootbridge.bounds import BOUNDS
from bootbridge.ports.byte_ports import BytePort, Sink
from bootbridge.ports.timers import Timer, Timers
from bootbridge.tunnel.packet_stream import PacketStream, Receiver, SendQueue, StreamCounters
from bootbridge.wire import connect_request as http
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_stream import Stream

if TYPE_CHECKING:
    from bootbridge.tunnel.proxy_core import ProxyCore

HEAD_SECONDS_MAX: Final = 60.0


class Cause(Enum):
    """Why a dial failed: which hop, and what the metric calls it."""

    NO_AGENT = "no_agent"
    ENDPOINT = "error_response"
    AGENT_LOST = "backend_close"
    TIMEOUT = "backend_dial_timeout"


class DialFailure(NamedTuple):
    cause: Cause
    text: str


class Connection(Protocol):
    """An established route, as its frontend sees it."""

    def upload(self, data: memoryview) -> None: ...
    def front_ended(self) -> None: ...
    def front_gone(self, reason: str) -> None: ...
    @property
    def front_drained(self) -> Callable[[], None]:
        """To be called when the frontend has taken some of what was written to it."""


class Dialling(Protocol):
    """A dial that is not answered yet, as its frontend sees it."""

    def cancel(self) -> None: ...


class Frontend(Protocol):
    @property
    def sink(self) -> Sink: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def established(self, route: Connection, connect_id: int) -> None: ...
    def refused(self, failure: DialFailure) -> None: ...
    def dial_moved(self, dialling: Dialling) -> None:
        """The dial goes on as another one, because its agent was lost."""

    def upload_to(self, sink: Sink) -> None:
        """From now on the caller's bytes go straight there."""

    @property
    def has_read_reply(self) -> bool:
        """Whether the caller has read what it was told, as far as one can know."""

    def end_of_data(self) -> bool:
        """The endpoint sends no more, but still listens. False: this caller knows no half-close
        and was told that the connection is closed."""

    def close(self, error: str) -> None:
        """The connection is over; an empty error is an orderly end."""


class ConnectFrontend:
    """HTTP CONNECT on a byte stream: one request, one answer, then bytes."""

    __slots__ = (
        "_core",
        "_dialling",
        "_early",
        "_ended",
        "_parser",
        "_route",
        "_timer",
        "on_bytes",
        "on_drained",
        "sink",
    )

    def __init__(self, core: ProxyCore, port: BytePort) -> None:
        self._core = core
        self.sink: BytePort = port
        self._parser = http.ConnectParser()
        self._early = b""
        self._ended = False
        self._dialling: Dialling | None = None
        self._route: Connection | None = None
        self._timer: Timer | None = core.timers.after(HEAD_SECONDS_MAX, self._too_slow)
        self.on_bytes: Callable[[memoryview], None] = self._on_head
        self.on_drained: Callable[[], None] = _nothing
        core.connect_frontends.add(self)

    def __repr__(self) -> str:
        return f"<ConnectFrontend {'open' if self._route else 'dialling' if self._dialling else 'new'}>"

    # --- from the socket

    def _on_head(self, data: memoryview) -> None:
        request = self._parser.receive(bytes(data))
        if request is None:
            return
        self._stop_timer()
        if isinstance(request, http.Refusal):
            self._core.event_log.info("request refused", status=request.status, why=request.reason)
            self.sink.write(request.reply)
            self._leave()
            return
        self.on_bytes = self._on_early
        self._early = self._parser.leftover
        self._dialling = self._core.dial(self, "tcp", request.target)

    def _on_early(self, data: memoryview) -> None:
        self._early += bytes(data)
        if len(self._early) > BOUNDS.early:
            self.sink.pause_reading()

    def on_eof(self, gone: bool) -> None:
        if self._route is not None:
            if gone:
                self._gone("frontend closed")
            else:
                self._route.front_ended()
        elif gone or self._dialling is None:
            self._gone("frontend closed before the connection was made")
        else:
            self._ended = True

    def on_lost(self, reason: str) -> None:
        self._gone(f"frontend broke: {reason}")

    def _gone(self, reason: str) -> None:
        route, dialling = self._route, self._dialling
        self._leave()
        if route is not None:
            route.front_gone(reason)
        elif dialling is not None:
            dialling.cancel()

    def stop(self, reason: str) -> None:
        """The server goes. A connection is broken, not closed: nobody may take it for a whole one."""
        dialling = self._dialling
        if dialling is not None:
            dialling.cancel()
            self.refused(DialFailure(Cause.NO_AGENT, reason))
        else:
            self.close(reason)

    def _too_slow(self) -> None:
        self._core.event_log.info(
            "request refused", why=f"no complete request within {HEAD_SECONDS_MAX:.0f} s"
        )
        self._leave()

    def _leave(self) -> None:
        self._stop_timer()
        self._route = self._dialling = None
        self.on_bytes = _discard
        self.on_drained = _nothing
        self._core.connect_frontends.discard(self)
        self.sink.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- from the route

    def pause_reading(self) -> None:
        self.sink.pause_reading()

    def resume_reading(self) -> None:
        self.sink.resume_reading()

    def established(self, route: Connection, connect_id: int) -> None:
        self._dialling = None
        self._route = route
        self.on_drained = route.front_drained
        self.sink.write(http.CONNECTION_ESTABLISHED)
        self.on_bytes = route.upload
        early, self._early = self._early, b""
        if len(early) > BOUNDS.early:
            self.sink.resume_reading()  # before the upload, which may have its own reason to pause
        if early:
            route.upload(memoryview(early))
        if self._ended and self._route is not None:
            route.front_ended()

    def refused(self, failure: DialFailure) -> None:
        self.sink.write(_REPLIES[failure.cause](failure.text))
        self._leave()

    def dial_moved(self, dialling: Dialling) -> None:
        self._dialling = dialling

    def upload_to(self, sink: Sink) -> None:
        self.on_bytes = sink.write

    @property
    def has_read_reply(self) -> bool:
        return not self.sink.unread

    def end_of_data(self) -> bool:
        if self.sink.finish():
            return True
        self._leave()
        return False

    def close(self, error: str) -> None:
        if error:
            self.sink.abort()  # an orderly end would pass a part for the whole
        self._leave()


def _discard(data: memoryview) -> None:
    return None


def _nothing() -> None:
    return None


_REPLIES: Final[dict[Cause, Callable[[str], bytes]]] = {
    Cause.NO_AGENT: http.no_agent_reply,
    Cause.ENDPOINT: http.dial_error_reply,
    Cause.AGENT_LOST: lambda _: http.agent_lost_reply(),
    Cause.TIMEOUT: lambda _: http.dial_timeout_reply(),
}


class _NoSource:
    """The agents' side needs no pausing from a gRPC frontend: credit or the stall guard bounds it."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


_NO_SOURCE: Final = _NoSource()


class GrpcFrontend(PacketStream):
    """One Proxy stream: a single dial, then packets. It may touch no connection but its own.

    Konnectivity's clients know no half-close: for them the end of data is the end.
    """

    def __init__(self, core: ProxyCore, stream: Stream, counters: StreamCounters, timers: Timers) -> None:
        super().__init__(stream, counters, timers)
        self._core = core
        self._random = 0
        self._dialled = False
        self._dialling: Dialling | None = None
        self._route: Connection | None = None
        self._send_queue: SendQueue | None = None
        core.grpc_frontends.add(self)

    def __repr__(self) -> str:
        return f"<GrpcFrontend {'open' if self._route else 'dialling' if self._dialling else 'idle'}>"

    # --- from the caller

    def on_headers(self, headers: Headers, end: bool) -> None:
        self.stream.send_headers(grpc.response_headers())

    def on_packet(self, packet: p.Packet) -> None:
        match packet:
            case p.DialRequest(protocol, address, random):
                self._on_dial(protocol, address, random)
            case p.CloseRequest(connect_id):
                self._on_close(connect_id)
            case p.CloseDial(random):
                self._on_close_dial(random)
            case p.Data(connect_id) if connect_id != 0:
                self._on_stray_data(connect_id)
            case _:
                pass

    def _on_dial(self, protocol: str, address: str, random: int) -> None:
        if self._dialled:
            self.send(p.DialResponse("a Proxy stream is for one connection only", 0, random))
            return
        self._dialled = True
        self._random = random
        self._dialling = self._core.dial(self, protocol, address)

    def _on_close(self, connect_id: int) -> None:
        if self._send_queue is None:
            self.send(p.CloseResponse("backend uninitialized", connect_id))
        elif connect_id == self._send_queue.connect_id and self._route is not None:
            self._release_route("frontend closed")
            self._send_queue.discard()
            self.send(p.CloseResponse("", connect_id))

    def _on_close_dial(self, random: int) -> None:
        if random != self._random:
            return
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        elif self._route is not None:
            # The answer crossed the cancellation: nobody will ever use this connection.
            self._release_route("frontend gave up the dial")

    def _on_stray_data(self, connect_id: int) -> None:
        if self._send_queue is None:
            self.send(p.CloseResponse("backend not initialized", connect_id))
        elif connect_id != self._send_queue.connect_id and self._route is not None:
            own = self._send_queue.connect_id
            self._release_route("frontend mixed up connection ids")
            for wrong in (own, connect_id):
                self.send(p.CloseResponse("mismatched connection IDs", wrong))

    def on_gone(self, status: int, reason: str) -> None:
        self._core.grpc_frontends.discard(self)
        if status != grpc.OK:
            self._core.count_stream_error("from_client", status)
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        orderly = status in (grpc.OK, grpc.CANCELLED)
        self._release_route("frontend closed" if orderly else f"frontend broke: {reason}")
        self.finish(grpc.OK)

    def _release_route(self, reason: str) -> None:
        route, self._route = self._route, None
        self.receivers.clear()
        if self._send_queue is not None:
            self._send_queue.on_drained = _nothing  # no credit for what is closed
        if route is not None:
            route.front_gone(reason)

    # --- from the route

    @property
    def sink(self) -> Sink:
        assert self._send_queue is not None
        return self._send_queue

    def pause_reading(self) -> None:
        self.stream.pause_reading()

    def resume_reading(self) -> None:
        self.stream.resume_reading()

    def established(self, route: Connection, connect_id: int) -> None:
        self._dialling = None
        self._route = route
        self._send_queue = SendQueue(self, connect_id, _NO_SOURCE)
        self._send_queue.on_drained = route.front_drained
        self.send(p.DialResponse("", connect_id, self._random))
        self.receivers[connect_id] = Receiver(self, connect_id, _Upload(route), self)

    def refused(self, failure: DialFailure) -> None:
        self._dialling = None
        self.send(p.DialResponse(failure.text, 0, self._random))

    def dial_moved(self, dialling: Dialling) -> None:
        self._dialling = dialling

    def upload_to(self, sink: Sink) -> None:
        for receiver in self.receivers.values():
            receiver.sink = sink

    @property
    def has_read_reply(self) -> bool:
        return True  # nobody can know

    def end_of_data(self) -> bool:
        self.close("")
        return False

    def close(self, error: str) -> None:
        route, self._route = self._route, None
        send_queue = self._send_queue
        self.receivers.clear()
        if route is not None and send_queue is not None:  # told once only
            send_queue.on_drained = _nothing  # no credit for what is closed
            send_queue.then(p.CloseResponse(error, send_queue.connect_id))

    def close_overrun(self, reason: str) -> None:
        raise AssertionError("a frontend's bytes are bounded by its own flow-control window")


class _Upload:
    """A gRPC caller's first bytes, before the route says where the rest goes."""

    __slots__ = ("_route",)
    backlog = 0

    def __init__(self, route: Connection) -> None:
        self._route = route

    def write(self, data: p.Buffer) -> None:
        self._route.upload(memoryview(data))
