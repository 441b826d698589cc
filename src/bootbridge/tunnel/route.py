"""Routes: established connections, frontend ↔ endpoint, through an agent or directly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from bootbridge.bounds import BOUNDS
from bootbridge.ports.byte_ports import BytePort, Sink
from bootbridge.ports.close_states import AGENT_ROUTE, DIRECT_ROUTE, Event, State
from bootbridge.ports.timers import Timer, Timers
from bootbridge.tunnel.dial_record import (
    AGENT_LOST,
    BY_BOTH_ENDS,
    BY_CALLER,
    BY_ENDPOINT,
    BY_SERVER,
    DialRecord,
)
from bootbridge.tunnel.frontend import Frontend
from bootbridge.tunnel.packet_stream import Receiver, SendQueue
from bootbridge.wire import packets as p

if TYPE_CHECKING:
    from bootbridge.tunnel.agent_stream import AgentStream
    from bootbridge.tunnel.proxy_core import ProxyCore

# kube-apiserver refuses a tunnel whose first bytes come in the same read as the 200, and
# Konnectivity's client loses bytes that come right behind DIAL_RSP. So the first bytes of an
# endpoint that sends first are held until the caller has sent something, or for this long, and
# for up to the second limit while the kernel knows that the caller has not read the 200.
FIRST_BYTES_HOLD_SECONDS: Final = 0.01
FIRST_BYTES_HOLD_SECONDS_MAX: Final = 1.0
# END and CLOSE_RSP. A hostile agent may repeat them, or send them in the wrong order.
HELD_ACTIONS_MAX: Final = 2
# How long a closing route may send nothing of its upload, and how long the agent's CLOSE_RSP may take.
CLOSING_SECONDS_MAX: Final = 30.0
# How long a half-closed route may stay without a byte in the direction that is still open.
HALF_OPEN_IDLE_SECONDS_MAX: Final = 300.0
HALF_OPEN_IDLE_TEXT: Final = "half-closed and idle"


class FirstBytesHold:
    """A sink that holds the endpoint's first bytes, and the end of its data if that follows at once.

    Calls ``on_due`` when they have waited long enough; the owner then calls ``release``.
    """

    __slots__ = ("_chunks", "_front", "_on_due", "_then", "_timer", "_timers", "_until", "backlog")

    def __init__(self, front: Frontend, timers: Timers, on_due: Callable[[], None]) -> None:
        self._front = front
        self._timers = timers
        self._on_due = on_due
        self._timer: Timer | None = None
        self._until = 0.0
        self._chunks: list[bytes] = []
        self._then: list[Callable[[], None]] = []
        self.backlog = 0

    def write(self, data: p.Buffer) -> None:
        if self._timer is None:
            self._until = self._timers.now() + FIRST_BYTES_HOLD_SECONDS_MAX
            self._timer = self._timers.after(FIRST_BYTES_HOLD_SECONDS, self._check)
        self._chunks.append(bytes(data))
        self.backlog += len(data)

    def _check(self) -> None:
        if self._front.has_read_reply or self._timers.now() >= self._until:
            self._on_due()
        else:
            self._timer = self._timers.after(FIRST_BYTES_HOLD_SECONDS, self._check)

    def then(self, action: Callable[[], None]) -> bool:
        """Runs ``action`` behind the held bytes. False: no bytes are held, so the caller runs it now."""
        if self._timer is None:
            return False
        if len(self._then) < HELD_ACTIONS_MAX:
            self._then.append(action)
        return True

    def release(self, sink: Sink) -> None:
        self.drop()
        for chunk in self._chunks:
            sink.write(chunk)
        for action in self._then:
            action()

    def drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class HalfOpenWatch:
    """Calls ``idle`` when a half-closed route has transferred nothing for HALF_OPEN_IDLE_SECONDS_MAX."""

    __slots__ = ("_idle", "_moved", "_moved_before", "_timer", "_timers", "_waiting")

    def __init__(
        self,
        timers: Timers,
        *,
        moved: Callable[[], int],
        waiting: Callable[[], int],
        idle: Callable[[], None],
    ) -> None:
        """``moved`` counts the bytes of both directions, since either may be the open one. ``waiting``
        counts the bytes that the endpoint has not taken yet: a slow endpoint is not an idle one."""
        self._timers = timers
        self._moved = moved
        self._waiting = waiting
        self._idle = idle
        self._moved_before = moved()
        self._timer = timers.after(HALF_OPEN_IDLE_SECONDS_MAX, self._check)

    def _check(self) -> None:
        moved = self._moved()
        if moved == self._moved_before and not self._waiting():
            self._idle()
            return
        self._moved_before = moved
        self._timer = self._timers.after(HALF_OPEN_IDLE_SECONDS_MAX, self._check)

    def cancel(self) -> None:
        self._timer.cancel()


class _DiscardingSink:
    """The sink of a connection whose receiving end is closed."""

    backlog = 0

    def write(self, data: p.Buffer) -> None: ...


DISCARD: Final = _DiscardingSink()


class AgentRoute:
    """A connection through an agent. Its key is (agent stream, connect id): agent ids may repeat."""

    __slots__ = (
        "_core",
        "_first_bytes",
        "_half_open",
        "_timer",
        "agent",
        "connect_id",
        "front",
        "opened_at",
        "receiver",
        "record",
        "send_queue",
        "state",
    )

    def __init__(
        self, core: ProxyCore, front: Frontend, agent: AgentStream, connect_id: int, record: DialRecord
    ) -> None:
        self._core = core
        self.front = front
        self.agent = agent
        self.connect_id = connect_id
        self.record = record
        self.opened_at = record.answered_at
        self.state: State = State.OPEN
        self.send_queue = SendQueue(agent, connect_id, front)
        if not agent.extension:
            self.send_queue.packet_max = front.go_agent_packet
        hold = FirstBytesHold(front, core.timers, self.release_first_bytes)
        self._first_bytes: FirstBytesHold | None = hold
        self.receiver = Receiver(agent, connect_id, hold, self)
        self._timer: Timer | None = None
        self._half_open: HalfOpenWatch | None = None

    def __repr__(self) -> str:
        waiting = f"↓{self.receiver.sink.backlog}B ↑{self.send_queue.backlog}B"
        return f"<AgentRoute {self.connect_id} {self.state} {waiting}>"

    @property
    def closing(self) -> bool:
        return self.state is State.CLOSING or self.state is State.CLOSED

    @property
    def bytes_up(self) -> int:
        """Bytes sent to the agent."""
        return self.send_queue.sent

    @property
    def bytes_down(self) -> int:
        """Bytes received from the agent, also those that a caller who has left did not take."""
        return self.receiver.written

    @property
    def queued_up(self) -> int:
        return self.send_queue.backlog

    @property
    def queued_down(self) -> int:
        return self.receiver.sink.backlog

    def _move(self, event: Event) -> bool:
        """Follows the table; True if the state changed."""
        before = self.state
        self.state = AGENT_ROUTE.after(before, event)
        return self.state is not before

    # --- from the frontend

    def upload(self, data: memoryview) -> None:
        """Takes the caller's first bytes; the frontend writes the others directly to the send queue."""
        self.release_first_bytes()
        if not self.closing:  # by a close that was held with the first bytes
            self.front.upload_to(self.send_queue)
            self.send_queue.write(data)

    def release_first_bytes(self) -> None:
        hold, self._first_bytes = self._first_bytes, None
        if hold is not None:
            self.receiver.sink = self.front.sink
            hold.release(self.front.sink)

    def front_ended(self) -> None:
        """The caller half-closed. A Go agent knows no END, so towards it the route closes."""
        if not self.agent.extension.half_close:
            self.front.close("")
            self.front_gone("frontend closed")
            return
        self.release_first_bytes()
        if self._move(Event.CALLER_ENDS):
            self.send_queue.then(p.End(self.connect_id))
            self._watch_half_open()

    def front_gone(self, reason: str) -> None:
        """The caller is gone: sends the rest of its upload, then CLOSE_REQ."""
        self._front_gone(reason, BY_CALLER)

    def _front_gone(self, reason: str, by: str) -> None:
        if self._move(Event.CALLER_GONE):
            self._stop(reason, by)
            self._request_close(upload_complete=True)

    @property
    def front_drained(self) -> Callable[[], None]:
        return self.receiver.drained

    # --- from the agent

    def on_closed(self, error: str) -> None:
        """CLOSE_RSP: the agent has closed the endpoint, and nothing follows."""
        if not self._wait_for_first_bytes(partial(self.on_closed, error)):
            reason = f"endpoint: {error}" if error else "endpoint closed"
            by = BY_BOTH_ENDS if self.state is State.BOTH_ENDED else BY_ENDPOINT
            # The download is complete. A reset would discard it because of an upload that came too late.
            self._close(Event.ENDPOINT_CLOSED, reason, "" if self._download_ended else error, by)

    def on_ended(self) -> None:
        """END: the endpoint half-closed."""
        if self._wait_for_first_bytes(self.on_ended) or not self._move(Event.ENDPOINT_ENDS):
            return
        if self.front.end_of_data():
            self._watch_half_open()
        else:
            self._front_gone("endpoint closed", BY_ENDPOINT)

    def _wait_for_first_bytes(self, action: Callable[[], None]) -> bool:
        return self._first_bytes is not None and self._first_bytes.then(action)

    def on_agent_lost(self, error: str, reason: str = "") -> None:
        """``error`` is for the caller, ``reason`` for the operator."""
        self.release_first_bytes()  # with the endpoint's own close, if it was held with them
        by = BY_SERVER if self._core.closing else AGENT_LOST
        self._close(Event.STREAM_LOST, f"agent lost: {reason or error}", error, by)

    def close_overrun(self, reason: str) -> None:
        self._core.event_log.warning(
            "connection closed: frontend stalled", connection=self.connect_id, reason=reason
        )
        upload_complete = self._upload_ended and not self.send_queue.backlog
        self._move(Event.OVERRUN)
        self._stop("stalled frontend", BY_SERVER)
        self.front.close(reason)
        self.send_queue.discard()
        self._request_close(upload_complete=upload_complete)

    # --- closing

    def _watch_half_open(self) -> None:
        if self._half_open is None:
            self._half_open = HalfOpenWatch(
                self._core.timers,
                moved=lambda: self.bytes_up + self.bytes_down,
                waiting=lambda: self.send_queue.backlog,
                idle=self._half_open_idle,
            )

    def _half_open_idle(self) -> None:
        upload_complete = self._upload_ended
        self._move(Event.IDLE)
        self.front.close(HALF_OPEN_IDLE_TEXT)
        self._stop(HALF_OPEN_IDLE_TEXT, BY_SERVER)
        self._request_close(upload_complete=upload_complete)

    @property
    def _upload_ended(self) -> bool:
        return self.state is State.UPLOAD_ENDED or self.state is State.BOTH_ENDED

    @property
    def _download_ended(self) -> bool:
        return self.state is State.DOWNLOAD_ENDED or self.state is State.BOTH_ENDED

    def _request_close(self, *, upload_complete: bool) -> None:
        self.send_queue.then(self._close_request(upload_complete=upload_complete))
        self._wait_for_close()

    def _close_request(self, *, upload_complete: bool) -> p.Packet:
        """The endpoint must see a truncated upload as a reset; a Go agent can only be asked for a close."""
        if upload_complete or not self.agent.extension.reset:
            return p.CloseRequest(self.connect_id)
        return p.Reset(self.connect_id)

    def _wait_for_close(self) -> None:
        unsent = self.send_queue.backlog

        def check() -> None:
            if self.send_queue.backlog < unsent:
                self._wait_for_close()  # a slow endpoint is not a stalled one
            else:
                self._closing_timed_out()

        self._timer = self._core.timers.after(CLOSING_SECONDS_MAX, check)

    def _close(self, event: Event, reason: str, error: str, by: str) -> None:
        was_closing = self.closing
        if self._move(event):
            if not was_closing:
                self._stop(reason, by)
                self.front.close(error)
            self._forget()

    def _stop(self, reason: str, by: str) -> None:
        """Stops the download; called once, when the route leaves the states in which it is open."""
        if self._half_open is not None:
            self._half_open.cancel()
        hold, self._first_bytes = self._first_bytes, None
        if hold is not None:
            hold.drop()
        if self.agent.guard is not None:
            self.agent.guard.forget(self.receiver)
        self.receiver.sink = DISCARD
        self._core.route_closed(self, reason, by)

    def _closing_timed_out(self) -> None:
        """The upload could not be sent, or the agent did not answer CLOSE_REQ."""
        upload_complete = not self.send_queue.backlog
        self._move(Event.TIMED_OUT)
        self.send_queue.discard()
        self.agent.send(self._close_request(upload_complete=upload_complete))
        self._forget()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.send_queue.discard()
        self.agent.forget_route(self)
        self._core.dial_history.ended(self.record, self.bytes_up, self.bytes_down)


class DirectRoute:
    """A connection that the server itself dialled: two byte streams, joined."""

    def __init__(self, core: ProxyCore, front: Frontend, port: BytePort, record: DialRecord) -> None:
        self._core = core
        self.front = front
        self._port = port
        self.state: State = State.OPEN
        hold = FirstBytesHold(front, core.timers, self.release_first_bytes)
        self._first_bytes: FirstBytesHold | None = hold
        self._half_open: HalfOpenWatch | None = None
        self.bytes_up = 0
        self.bytes_down = 0
        self.record = record
        self.opened_at = record.answered_at

    def __repr__(self) -> str:
        return f"<DirectRoute {self.state}>"

    @property
    def queued_up(self) -> int:
        return self._port.backlog

    @property
    def queued_down(self) -> int:
        return (self._first_bytes or self.front.sink).backlog

    def _move(self, event: Event) -> bool:
        """Follows the table; True if the state changed."""
        before = self.state
        self.state = DIRECT_ROUTE.after(before, event)
        return self.state is not before

    # --- from the frontend

    def upload(self, data: memoryview) -> None:
        self.release_first_bytes()
        if self.state is State.CLOSED:  # by an end that was held with the first bytes
            return
        self.bytes_up += len(data)
        self._port.write(data)
        if self._port.backlog > BOUNDS.send_queue_high:
            self.front.pause_reading()

    def release_first_bytes(self) -> None:
        hold, self._first_bytes = self._first_bytes, None
        if hold is not None:
            hold.release(self.front.sink)

    def front_ended(self) -> None:
        self.release_first_bytes()
        if self._move(Event.CALLER_ENDS):
            self._port.finish()
            self._one_direction_ended(BY_BOTH_ENDS)

    def front_gone(self, reason: str) -> None:
        self._move(Event.CALLER_GONE)
        self._stop(reason, BY_CALLER)
        self._port.close()

    @property
    def front_drained(self) -> Callable[[], None]:
        return self._on_front_drained

    def _on_front_drained(self) -> None:
        if self.state is not State.CLOSED and self.front.sink.backlog <= BOUNDS.send_queue_low:
            self._port.resume_reading()

    # --- from the endpoint

    def on_bytes(self, data: memoryview) -> None:
        sink = self._first_bytes or self.front.sink
        self.bytes_down += len(data)
        sink.write(data)
        if sink.backlog > BOUNDS.send_queue_high:
            self._port.pause_reading()

    def on_eof(self, gone: bool) -> None:
        if self._first_bytes is not None and self._first_bytes.then(partial(self.on_eof, gone)):
            return
        takes_more = not gone and self.state is State.OPEN
        if (takes_more or self.state is State.UPLOAD_ENDED) and self.front.end_of_data():
            self._move(Event.ENDPOINT_ENDS)
            self._one_direction_ended(BY_BOTH_ENDS)
        else:
            self._move(Event.ENDPOINT_CLOSED)
            self._one_direction_ended(BY_ENDPOINT)

    def on_drained(self) -> None:
        if self._port.backlog <= BOUNDS.send_queue_low and self.state is not State.CLOSED:
            self.front.resume_reading()

    def on_lost(self, reason: str) -> None:
        self.release_first_bytes()
        download_ended = self.state is State.DOWNLOAD_ENDED
        if self._move(Event.ENDPOINT_LOST):
            self._close(f"endpoint: {reason}", "" if download_ended else reason, BY_ENDPOINT)

    def stop(self, reason: str) -> None:
        """The server stops. Resets both byte streams, so that both ends see a truncation."""
        self._move(Event.CLOSE)
        self._stop(reason, BY_SERVER)
        self.front.close(reason)
        self._port.abort()

    # --- closing

    def _one_direction_ended(self, by: str) -> None:
        """``by``: who has closed the connection if this was the second direction."""
        if self.state is State.CLOSED:
            self._close("both ends closed", "", by)
        elif self._half_open is None:
            self._half_open = HalfOpenWatch(
                self._core.timers,
                moved=lambda: self.bytes_up + self.bytes_down,
                waiting=lambda: self._port.backlog,
                idle=self._half_open_idle,
            )

    def _half_open_idle(self) -> None:
        upload_ended = self.state is State.UPLOAD_ENDED
        self._move(Event.IDLE)
        if not upload_ended:
            self._port.abort()  # the caller has not finished its upload
        self._close(HALF_OPEN_IDLE_TEXT, HALF_OPEN_IDLE_TEXT, BY_SERVER)

    def _close(self, reason: str, error: str, by: str) -> None:
        self._stop(reason, by)
        self.front.close(error)
        self._port.close()

    def _stop(self, reason: str, by: str) -> None:
        if self._half_open is not None:
            self._half_open.cancel()
        hold, self._first_bytes = self._first_bytes, None
        if hold is not None:
            hold.drop()
        self._core.route_closed(self, reason, by)
