"""Routes: established connections, frontend ↔ endpoint, through an agent or directly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from bootbridge.bounds import BOUNDS
from bootbridge.ports.byte_ports import BytePort, Sink
from bootbridge.ports.timers import Timer, Timers
from bootbridge.tunnel.frontend import Frontend
from bootbridge.tunnel.packet_stream import Receiver, SendQueue
from bootbridge.wire import packets as p

if TYPE_CHECKING:
    from bootbridge.tunnel.agent_stream import AgentStream
    from bootbridge.tunnel.proxy_core import ProxyCore

# kube-apiserver refuses a tunnel whose first bytes come in the same read as the 200, and
# Konnectivity's client loses bytes that come right behind DIAL_RSP. So an endpoint that
# speaks first is held back until the caller has spoken, or for this long, and longer while
# the kernel knows that the caller has not even read the 200.
FIRST_BYTES_HOLD_SECONDS: Final = 0.01
FIRST_BYTES_HOLD_SECONDS_MAX: Final = 1.0
# How long a closed route may take to flush its upload and to hear the agent's CLOSE_RSP.
CLOSING_SECONDS_MAX: Final = 30.0
# How long a half-closed route may stay without a byte in the direction that is still open.
HALF_OPEN_IDLE_SECONDS_MAX: Final = 300.0


class FirstBytesHold:
    """A sink that keeps the endpoint's first words, and its end if that comes right behind them.

    ``speak`` is called when they have waited long enough; it has to ``release`` them.
    """

    __slots__ = ("_chunks", "_front", "_speak", "_then", "_timer", "_timers", "_until", "backlog")

    def __init__(self, front: Frontend, timers: Timers, speak: Callable[[], None]) -> None:
        self._front = front
        self._timers = timers
        self._speak = speak
        self._timer: Timer | None = None
        self._until = 0.0
        self._chunks: list[bytes] = []
        self._then: Callable[[], None] | None = None
        self.backlog = 0

    def write(self, data: p.Buffer) -> None:
        if self._timer is None:
            self._until = self._timers.now() + FIRST_BYTES_HOLD_SECONDS_MAX
            self._timer = self._timers.after(FIRST_BYTES_HOLD_SECONDS, self._waited)
        self._chunks.append(bytes(data))
        self.backlog += len(data)

    def _waited(self) -> None:
        if self._front.has_read_reply or self._timers.now() >= self._until:
            self._speak()
        else:
            self._timer = self._timers.after(FIRST_BYTES_HOLD_SECONDS, self._waited)

    def then(self, action: Callable[[], None]) -> bool:
        """What comes behind words that are held back waits with them. False: there are none."""
        if self._timer is None:
            return False
        self._then = action
        return True

    def release(self, sink: Sink) -> None:
        self.drop()
        for chunk in self._chunks:
            sink.write(chunk)
        if self._then is not None:
            self._then()

    def drop(self) -> None:
        """Nobody wants to hear them any more."""
        if self._timer is not None:
            self._timer.cancel()


class HalfOpenWatch:
    """Looks whether anything still moves on a route that one side has ended."""

    __slots__ = ("_idle", "_moved", "_moved_before", "_timer", "_timers", "_waiting")

    def __init__(
        self,
        timers: Timers,
        *,
        moved: Callable[[], int],
        waiting: Callable[[], int],
        idle: Callable[[], None],
    ) -> None:
        """``moved`` counts bytes of both directions, as either may be the one that is still open, and
        ``waiting`` what the endpoint has yet to take: an endpoint that is slow is not idle."""
        self._timers = timers
        self._moved = moved
        self._waiting = waiting
        self._idle = idle
        self._moved_before = moved()
        self._timer = timers.after(HALF_OPEN_IDLE_SECONDS_MAX, self._look)

    def _look(self) -> None:
        moved = self._moved()
        if moved == self._moved_before and not self._waiting():
            self._idle()
            return
        self._moved_before = moved
        self._timer = self._timers.after(HALF_OPEN_IDLE_SECONDS_MAX, self._look)

    def cancel(self) -> None:
        self._timer.cancel()


class _Nowhere:
    """The sink of a connection whose receiver is gone."""

    backlog = 0

    def write(self, data: p.Buffer) -> None: ...


NOWHERE: Final = _Nowhere()


class AgentRoute:
    """A connection through an agent. Keyed by (agent stream, connect id), never by agent id."""

    __slots__ = (
        "_agent_ended",
        "_closing",
        "_core",
        "_first_bytes",
        "_front_ended",
        "_half_open",
        "_timer",
        "agent",
        "connect_id",
        "front",
        "opened_at",
        "receiver",
        "send_queue",
    )

    def __init__(self, core: ProxyCore, front: Frontend, agent: AgentStream, connect_id: int) -> None:
        self._core = core
        self.front = front
        self.agent = agent
        self.connect_id = connect_id
        self.opened_at = core.timers.now()
        self.send_queue = SendQueue(agent, connect_id, front)
        held = FirstBytesHold(front, core.timers, self.release_first_bytes)
        self._first_bytes: FirstBytesHold | None = held
        self.receiver = Receiver(agent, connect_id, held, self)
        self._front_ended = False
        self._agent_ended = False
        self._closing = False
        self._timer: Timer | None = None
        self._half_open: HalfOpenWatch | None = None

    def __repr__(self) -> str:
        state = "closing" if self._closing else "open"
        return f"<Route {self.connect_id} {state} ↓{self.receiver.sink.backlog}B ↑{self.send_queue.backlog}B>"

    @property
    def closing(self) -> bool:
        return self._closing

    # --- from the frontend

    def upload(self, data: memoryview) -> None:
        """The caller's first bytes; those that follow go straight to the send_queue."""
        self.release_first_bytes()
        if not self._closing:  # by an end that was held back
            self.front.upload_to(self.send_queue)
            self.send_queue.write(data)

    def release_first_bytes(self) -> None:
        held, self._first_bytes = self._first_bytes, None
        if held is not None and not self._closing:
            self.receiver.sink = self.front.sink
            held.release(self.front.sink)

    def front_ended(self) -> None:
        """The caller sends no more. A Go agent can only be told by closing."""
        if not self.agent.extension.half_close:
            self.front.close("")
            self.front_gone("frontend closed")
            return
        self.release_first_bytes()
        if not (self._front_ended or self._closing):
            self._front_ended = True
            self.send_queue.then(p.End(self.connect_id))
            self._watch_half_open()

    def front_gone(self, reason: str) -> None:
        """The caller is gone: what it sent still reaches the endpoint, then the agent closes."""
        if self._closing:
            return
        self._start_closing(reason)
        self.send_queue.then(p.CloseRequest(self.connect_id))
        self._timer = self._core.timers.after(CLOSING_SECONDS_MAX, self._give_up)

    @property
    def front_drained(self) -> Callable[[], None]:
        return self.receiver.drained

    # --- from the agent

    def on_closed(self, error: str) -> None:
        """CLOSE_RSP: the agent has closed the endpoint, nothing follows."""
        if self._comes_later(partial(self.on_closed, error)):
            return
        if not self._closing:
            self._start_closing(f"endpoint: {error}" if error else "endpoint closed")
            self.front.close(error)
        self._forget()

    def on_ended(self) -> None:
        """END: the endpoint sends no more, but may still read."""
        if self._closing or self._agent_ended or self._comes_later(self.on_ended):
            return
        self._agent_ended = True
        if self.front.end_of_data():
            self._watch_half_open()
        else:
            self.front_gone("endpoint closed")

    def _comes_later(self, news: Callable[[], None]) -> bool:
        return self._first_bytes is not None and self._first_bytes.then(news)

    def on_agent_lost(self, reason: str) -> None:
        self.release_first_bytes()  # of its own end, too, if it was only held back
        if not self._closing:
            self._start_closing("agent lost")
            self.front.close(reason)
        self._forget()

    def close_overrun(self, reason: str) -> None:
        self._core.event_log.warning(
            "connection closed: its frontend does not keep up", connection=self.connect_id, why=reason
        )
        self._start_closing("stalled frontend")
        self.front.close(reason)
        self.send_queue.discard()
        self.send_queue.then(p.CloseRequest(self.connect_id))
        self._timer = self._core.timers.after(CLOSING_SECONDS_MAX, self._give_up)

    # --- the end

    def _watch_half_open(self) -> None:
        if self._half_open is None:
            self._half_open = HalfOpenWatch(
                self._core.timers,
                moved=lambda: self.receiver.written + self.send_queue.granted - self.send_queue.credit,
                waiting=lambda: self.send_queue.backlog,
                idle=self._half_open_idle,
            )

    def _half_open_idle(self) -> None:
        self.front.close("half-closed and idle")
        self.front_gone("half-closed and idle")

    def _start_closing(self, reason: str) -> None:
        self._closing = True
        if self._half_open is not None:
            self._half_open.cancel()
        held, self._first_bytes = self._first_bytes, None
        if held is not None:
            held.drop()
        if self.agent.guard is not None:
            self.agent.guard.forget(self.receiver)
        self.receiver.sink = NOWHERE
        self._core.route_closed(self, reason)

    def _give_up(self) -> None:
        """The upload could not be flushed, or the agent never answered."""
        self.send_queue.discard()
        self.agent.send(p.CloseRequest(self.connect_id))
        self._forget()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.send_queue.discard()
        self.agent.forget_route(self)


class DirectRoute:
    """A connection that the server itself dialled: two byte streams, joined."""

    def __init__(self, core: ProxyCore, front: Frontend, port: BytePort) -> None:
        self._core = core
        self.front = front
        self._port = port
        self._first_bytes: FirstBytesHold | None = FirstBytesHold(
            front, core.timers, self.release_first_bytes
        )
        self._half_open: HalfOpenWatch | None = None
        self._moved = 0
        self._closed = False
        self._front_ended = False
        self._endpoint_ended = False
        self.opened_at = core.timers.now()

    def __repr__(self) -> str:
        return f"<DirectRoute {'closed' if self._closed else 'open'}>"

    # --- from the frontend

    def upload(self, data: memoryview) -> None:
        self.release_first_bytes()
        if self._closed:  # by an end that was held back
            return
        self._moved += len(data)
        self._port.write(data)
        if self._port.backlog > BOUNDS.send_queue_high:
            self.front.pause_reading()

    def release_first_bytes(self) -> None:
        held, self._first_bytes = self._first_bytes, None
        if held is not None and not self._closed:
            held.release(self.front.sink)

    def front_ended(self) -> None:
        self.release_first_bytes()
        self._front_ended = True
        self._port.finish()
        self._one_end_less()

    def front_gone(self, reason: str) -> None:
        if not self._closed:
            self._close(reason)
            self._port.close()

    @property
    def front_drained(self) -> Callable[[], None]:
        return self._on_front_drained

    def _on_front_drained(self) -> None:
        if not self._closed and self.front.sink.backlog <= BOUNDS.send_queue_low:
            self._port.resume_reading()

    # --- from the endpoint

    def on_bytes(self, data: memoryview) -> None:
        sink = self._first_bytes or self.front.sink
        self._moved += len(data)
        sink.write(data)
        if sink.backlog > BOUNDS.send_queue_high:
            self._port.pause_reading()

    def on_eof(self, gone: bool) -> None:
        if self._first_bytes is not None and self._first_bytes.then(partial(self.on_eof, gone)):
            return
        self._endpoint_ended = True
        if not self.front.end_of_data():
            self._front_ended = True
        self._one_end_less()

    def on_drained(self) -> None:
        if self._port.backlog <= BOUNDS.send_queue_low and not self._closed:
            self.front.resume_reading()

    def on_lost(self, reason: str) -> None:
        self.release_first_bytes()
        if not self._closed:
            self._close(f"endpoint: {reason}")
            self.front.close(reason)
            self._port.close()

    def stop(self, reason: str) -> None:
        """The server goes, in the middle of what was being said: neither end may take it for all."""
        if not self._closed:
            self._close(reason)
            self.front.close(reason)
            self._port.abort()

    def _one_end_less(self) -> None:
        if self._closed:
            return
        if self._front_ended and self._endpoint_ended:
            self._close("both ends closed")
            self.front.close("")
            self._port.close()
        elif self._half_open is None:
            self._half_open = HalfOpenWatch(
                self._core.timers,
                moved=lambda: self._moved,
                waiting=lambda: self._port.backlog,
                idle=self._half_open_idle,
            )

    def _half_open_idle(self) -> None:
        self._close("half-closed and idle")
        self.front.close("half-closed and idle")
        self._port.close()

    def _close(self, reason: str) -> None:
        self._closed = True
        if self._half_open is not None:
            self._half_open.cancel()
        held, self._first_bytes = self._first_bytes, None
        if held is not None:
            held.drop()
        self._core.route_closed(self, reason)
