"""Frontends: the callers on the API server's side, by HTTP CONNECT or by gRPC.

Both give a route the same interface: a sink for the download, a source that can be paused, and
methods for what happens to the connection: established, refused, end of data, closed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from bootbridge.bounds import BOUNDS
from bootbridge.ports.byte_ports import BytePort, Sink
from bootbridge.ports.close_states import FRONTEND, Event, State
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


class DialFailureCause(Enum):
    """Which hop of a dial failed; the value is the metric's label."""

    NO_AGENT = "no_agent"
    ENDPOINT = "error_response"
    AGENT_LOST = "backend_close"
    TIMEOUT = "backend_dial_timeout"


class DialFailure(NamedTuple):
    cause: DialFailureCause
    text: str


class EstablishedRoute(Protocol):
    """A route's interface towards its frontend."""

    def upload(self, data: memoryview) -> None: ...
    def front_ended(self) -> None: ...
    def front_gone(self, reason: str) -> None: ...
    @property
    def front_drained(self) -> Callable[[], None]:
        """The function to call when the caller has taken some of the download."""


class CancellableDial(Protocol):
    """An unanswered dial's interface towards its frontend."""

    def cancel(self) -> None: ...


class Frontend(Protocol):
    @property
    def caller(self) -> str:
        """The address of the caller, or ``unix``."""

    @property
    def mode(self) -> str:
        """The protocol of the caller, as in the server's --mode."""

    @property
    def go_agent_packet(self) -> int:
        """The largest payload of one DATA packet to an agent that knows no credit."""

    @property
    def sink(self) -> Sink: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def established(self, route: EstablishedRoute, connect_id: int) -> None: ...
    def refused(self, failure: DialFailure) -> None: ...
    def dial_moved(self, dial: CancellableDial) -> None:
        """Another dial replaces the present one, because its agent was lost."""

    def upload_to(self, sink: Sink) -> None:
        """Sends all further bytes of the caller directly to ``sink``."""

    @property
    def has_read_reply(self) -> bool:
        """Whether the caller has read everything written to it, as far as the kernel knows."""

    def end_of_data(self) -> bool:
        """Half-closes the download. False: this caller knows no half-close and was closed instead."""

    def close(self, error: str) -> None:
        """Closes the connection: in order if ``error`` is empty, else so that the caller sees a failure."""


class ConnectFrontend:
    """HTTP CONNECT on a byte stream: one request, one reply, then bytes."""

    __slots__ = (
        "_core",
        "_dial",
        "_early",
        "_parser",
        "_route",
        "_timer",
        "caller",
        "on_bytes",
        "on_drained",
        "sink",
        "state",
    )

    def __init__(self, core: ProxyCore, port: BytePort, caller: str = "") -> None:
        self._core = core
        self.caller = caller
        self.sink: BytePort = port
        self.state: State = State.NEW
        self._parser = http.ConnectParser()
        self._early = b""
        self._dial: CancellableDial | None = None
        self._route: EstablishedRoute | None = None
        self._timer: Timer | None = core.timers.after(HEAD_SECONDS_MAX, self._head_timed_out)
        self.on_bytes: Callable[[memoryview], None] = self._on_head
        self.on_drained: Callable[[], None] = _nothing
        core.connect_frontends.add(self)

    def __repr__(self) -> str:
        return f"<ConnectFrontend {self.state}>"

    def _move(self, event: Event) -> bool:
        """Follows the table; True if the state changed."""
        before = self.state
        self.state = FRONTEND.after(before, event)
        return self.state is not before

    # --- from the socket

    def _on_head(self, data: memoryview) -> None:
        request = self._parser.receive(bytes(data))
        if request is None:
            return
        self._stop_timer()
        if isinstance(request, http.Refusal):
            self._core.event_log.info("request refused", status=request.status, reason=request.reason)
            self.sink.write(request.reply)
            self._leave(Event.REFUSED)
            return
        self._move(Event.REQUEST)
        self.on_bytes = self._on_early
        self._early = self._parser.leftover
        self._dial = self._core.dial(self, "tcp", request.target)

    def _on_early(self, data: memoryview) -> None:
        self._early += bytes(data)
        if len(self._early) > BOUNDS.early:
            self.sink.pause_reading()

    def on_eof(self, gone: bool) -> None:
        if gone:
            self._gone("frontend closed")
        elif self.state is State.NEW:
            self._leave(Event.CALLER_ENDS)
        elif not self._move(Event.CALLER_ENDS) and self._route is not None:
            self._route.front_ended()

    def on_lost(self, reason: str) -> None:
        self._gone(f"frontend connection lost: {reason}")

    def _gone(self, reason: str) -> None:
        route, dial = self._route, self._dial
        self._leave(Event.CALLER_GONE)
        if route is not None:
            route.front_gone(reason)
        elif dial is not None:
            dial.cancel()

    def stop(self, reason: str) -> None:
        """The server stops. Resets an established connection, so that the caller sees a truncation."""
        dial = self._dial
        if dial is not None:
            dial.cancel()
            self.refused(DialFailure(DialFailureCause.NO_AGENT, reason))
        else:
            self.close(reason)

    def _head_timed_out(self) -> None:
        self._core.event_log.info(
            "request refused", reason=f"no complete request within {HEAD_SECONDS_MAX:.0f} s"
        )
        self._leave(Event.REFUSED)

    def _leave(self, event: Event) -> None:
        if self._move(event):
            self._stop_timer()
            self._route = self._dial = None
            self.on_bytes = _discard
            self.on_drained = _nothing
            self._core.connect_frontends.discard(self)
            self.sink.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- from the route

    @property
    def mode(self) -> str:
        return "http-connect"

    @property
    def go_agent_packet(self) -> int:
        return BOUNDS.go_agent_packet

    def pause_reading(self) -> None:
        self.sink.pause_reading()

    def resume_reading(self) -> None:
        self.sink.resume_reading()

    def established(self, route: EstablishedRoute, connect_id: int) -> None:
        upload_ended = self.state is State.DIALLING_UPLOAD_ENDED
        self._move(Event.ESTABLISHED)
        self._dial = None
        self._route = route
        self.on_drained = route.front_drained
        self.sink.write(http.CONNECTION_ESTABLISHED)
        self.on_bytes = route.upload
        early, self._early = self._early, b""
        if len(early) > BOUNDS.early:
            self.sink.resume_reading()  # before the upload, which may pause reading for a reason of its own
        if early:
            route.upload(memoryview(early))
        if upload_ended and self._route is not None:
            route.front_ended()

    def refused(self, failure: DialFailure) -> None:
        self.sink.write(_REPLIES[failure.cause](failure.text))
        self._leave(Event.REFUSED)

    def dial_moved(self, dial: CancellableDial) -> None:
        self._dial = dial

    def upload_to(self, sink: Sink) -> None:
        self.on_bytes = sink.write

    @property
    def has_read_reply(self) -> bool:
        return not self.sink.unread

    def end_of_data(self) -> bool:
        if self.sink.finish():
            return True
        self._leave(Event.CLOSE)
        return False

    def close(self, error: str) -> None:
        if error and self.state is not State.CLOSED:
            self.sink.abort()  # an orderly end would hide the truncation
        self._leave(Event.CLOSE)


def _discard(data: memoryview) -> None:
    return None


def _nothing() -> None:
    return None


_REPLIES: Final[dict[DialFailureCause, Callable[[str], bytes]]] = {
    DialFailureCause.NO_AGENT: http.no_agent_reply,
    DialFailureCause.ENDPOINT: http.dial_error_reply,
    DialFailureCause.AGENT_LOST: lambda _: http.agent_lost_reply(),
    DialFailureCause.TIMEOUT: lambda _: http.dial_timeout_reply(),
}


class _NoSource:
    """A gRPC frontend does not pause the agent's side: credit or the stall guard bounds the download."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


_NO_SOURCE: Final = _NoSource()


class GrpcFrontend(PacketStream):
    """One Proxy stream: a single dial, then packets of that one connection.

    Konnectivity's clients know no half-close: for them the end of data closes the connection.
    """

    def __init__(
        self,
        core: ProxyCore,
        stream: Stream,
        counters: StreamCounters,
        timers: Timers,
        caller: str = "",
    ) -> None:
        super().__init__(stream, counters, timers)
        self._core = core
        self.caller = caller
        self.state: State = State.NEW
        self._random = 0
        self._dial: CancellableDial | None = None
        self._route: EstablishedRoute | None = None
        self._send_queue: SendQueue | None = None  # from the first DIAL_RSP on, also when closed
        core.grpc_frontends.add(self)

    def __repr__(self) -> str:
        return f"<GrpcFrontend {self.state}>"

    def _move(self, event: Event) -> bool:
        """Follows the table; True if the state changed."""
        before = self.state
        self.state = FRONTEND.after(before, event)
        return self.state is not before

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
        if self.state is not State.NEW:
            self.send(p.DialResponse("a Proxy stream is for one connection only", 0, random))
            return
        self._move(Event.REQUEST)
        self._random = random
        self._dial = self._core.dial(self, protocol, address)

    def _on_close(self, connect_id: int) -> None:
        if self._send_queue is None:
            self.send(p.CloseResponse("backend uninitialized", connect_id))
        elif connect_id == self._send_queue.connect_id and self.state is State.OPEN:
            self._leave("frontend closed")
            self._send_queue.discard()
            self.send(p.CloseResponse("", connect_id))

    def _on_close_dial(self, random: int) -> None:
        """Cancels the dial, or the connection if DIAL_RSP crossed the cancellation."""
        if random == self._random and self.state is not State.NEW:
            self._leave("frontend gave up the dial")

    def _on_stray_data(self, connect_id: int) -> None:
        if self._send_queue is None:
            self.send(p.CloseResponse("backend not initialized", connect_id))
        elif connect_id != self._send_queue.connect_id and self.state is State.OPEN:
            own = self._send_queue.connect_id
            self._leave("frontend mixed up connection ids")
            for wrong in (own, connect_id):
                self.send(p.CloseResponse("mismatched connection IDs", wrong))

    def on_gone(self, status: int, reason: str) -> None:
        self._core.grpc_frontends.discard(self)
        if status != grpc.OK:
            self._core.count_stream_error("from_client", status)
        orderly = status in (grpc.OK, grpc.CANCELLED)
        self._leave("frontend closed" if orderly else f"frontend connection lost: {reason}")
        self.finish(grpc.OK)

    def _leave(self, reason: str) -> None:
        if self._move(Event.CALLER_GONE):
            route, dial = self._route, self._dial
            self._let_go()
            if dial is not None:
                dial.cancel()
            if route is not None:
                route.front_gone(reason)

    def _let_go(self) -> None:
        self._route = self._dial = None
        self.receivers.clear()
        if self._send_queue is not None:
            self._send_queue.on_drained = _nothing  # no credit for a closed connection

    # --- from the route

    @property
    def mode(self) -> str:
        return "grpc"

    @property
    def go_agent_packet(self) -> int:
        return BOUNDS.go_agent_grpc_packet

    @property
    def sink(self) -> Sink:
        assert self._send_queue is not None
        return self._send_queue

    def pause_reading(self) -> None:
        self.stream.pause_reading()

    def resume_reading(self) -> None:
        self.stream.resume_reading()

    def established(self, route: EstablishedRoute, connect_id: int) -> None:
        self._move(Event.ESTABLISHED)
        self._dial = None
        self._route = route
        self._send_queue = SendQueue(self, connect_id, _NO_SOURCE)
        self._send_queue.on_drained = route.front_drained
        self.send(p.DialResponse("", connect_id, self._random))
        self.receivers[connect_id] = Receiver(self, connect_id, _FirstUpload(route), self)

    def refused(self, failure: DialFailure) -> None:
        self._move(Event.REFUSED)
        self._dial = None
        self.send(p.DialResponse(failure.text, 0, self._random))

    def dial_moved(self, dial: CancellableDial) -> None:
        self._dial = dial

    def upload_to(self, sink: Sink) -> None:
        for receiver in self.receivers.values():
            receiver.sink = sink

    @property
    def has_read_reply(self) -> bool:
        return True  # HTTP/2 does not reveal it

    def end_of_data(self) -> bool:
        self.close("")
        return False

    def close(self, error: str) -> None:
        if self._move(Event.CLOSE) and self._send_queue is not None:
            self._let_go()
            self._send_queue.then(p.CloseResponse(error, self._send_queue.connect_id))

    def close_overrun(self, reason: str) -> None:
        raise AssertionError("a frontend's bytes are bounded by its own flow-control window")


class _FirstUpload:
    """The sink of a gRPC caller's first bytes, until the route names the next one."""

    __slots__ = ("_route",)
    backlog = 0

    def __init__(self, route: EstablishedRoute) -> None:
        self._route = route

    def write(self, data: p.Buffer) -> None:
        self._route.upload(memoryview(data))
