"""Routes: established connections, frontend ↔ endpoint, through an agent or directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bootbridge.bounds import BOUNDS
from bootbridge.tunnel.frontend import Frontend
from bootbridge.tunnel.packet_stream import Inlet, Outlet
from bootbridge.tunnel.ports import BytePort, Sink
from bootbridge.tunnel.timers import Timer, Timers
from bootbridge.wire import packets as p

if TYPE_CHECKING:
    from bootbridge.tunnel.agent_stream import AgentStream
    from bootbridge.tunnel.proxy_core import ProxyCore

# kube-apiserver refuses a tunnel whose first bytes come in the same read as the 200, and
# Konnectivity's client loses bytes that come right behind DIAL_RSP. So an endpoint that
# speaks first is held back until the caller has spoken, or for this long.
FIRST_WORD_SECONDS: Final = 0.01
# How long a closed route may take to flush its upload and to hear the agent's CLOSE_RSP.
CLOSING_SECONDS_MAX: Final = 30.0
# How long a half-closed route may stay without a byte in the direction that is still open.
HALF_OPEN_IDLE_SECONDS_MAX: Final = 300.0


class HeldBack:
    """A sink that keeps the endpoint's first words until ``release``."""

    __slots__ = ("_chunks", "_route", "_timer", "_timers", "backlog")

    def __init__(self, route: AgentRoute, timers: Timers) -> None:
        self._route = route
        self._timers = timers
        self._timer: Timer | None = None
        self._chunks: list[bytes] = []
        self.backlog = 0

    def write(self, data: p.Buffer) -> None:
        if self._timer is None:
            self._timer = self._timers.after(FIRST_WORD_SECONDS, self._route.let_endpoint_speak)
        self._chunks.append(bytes(data))
        self.backlog += len(data)

    def release(self, sink: Sink) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for chunk in self._chunks:
            sink.write(chunk)


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
        "_front_ended",
        "_held_back",
        "_moved_before",
        "_timer",
        "agent",
        "connect_id",
        "front",
        "inlet",
        "opened_at",
        "outlet",
    )

    def __init__(self, core: ProxyCore, front: Frontend, agent: AgentStream, connect_id: int) -> None:
        self._core = core
        self.front = front
        self.agent = agent
        self.connect_id = connect_id
        self.opened_at = core.timers.now()
        self.outlet = Outlet(agent, connect_id, front)
        self._held_back: HeldBack | None = HeldBack(self, core.timers)
        self.inlet = Inlet(agent, connect_id, self._held_back, self)
        self._front_ended = False
        self._agent_ended = False
        self._closing = False
        self._timer: Timer | None = None
        self._moved_before = 0

    def __repr__(self) -> str:
        state = "closing" if self._closing else "open"
        return f"<Route {self.connect_id} {state} ↓{self.inlet.sink.backlog}B ↑{self.outlet.backlog}B>"

    @property
    def closing(self) -> bool:
        return self._closing

    # --- from the frontend

    def upload(self, data: memoryview) -> None:
        """The caller's first bytes; those that follow go straight to the outlet."""
        self.let_endpoint_speak()
        self.front.upload_to(self.outlet)
        self.outlet.write(data)

    def let_endpoint_speak(self) -> None:
        held, self._held_back = self._held_back, None
        if held is not None and not self._closing:
            self.inlet.sink = self.front.sink
            held.release(self.front.sink)

    def front_ended(self) -> None:
        """The caller sends no more. A Go agent can only be told by closing."""
        if not self.agent.extension.half_close:
            self.front.close("")
            self.front_gone("frontend closed")
        elif not self._front_ended:
            self._front_ended = True
            self.let_endpoint_speak()
            self.outlet.then(p.End(self.connect_id))
            self._watch_half_open()

    def front_gone(self, reason: str) -> None:
        """The caller is gone: what it sent still reaches the endpoint, then the agent closes."""
        if self._closing:
            return
        self._start_closing(reason)
        self.outlet.then(p.CloseRequest(self.connect_id))
        self._timer = self._core.timers.after(CLOSING_SECONDS_MAX, self._give_up)

    @property
    def front_drained(self) -> Callable[[], None]:
        return self.inlet.drained

    # --- from the agent

    def on_closed(self, error: str) -> None:
        """CLOSE_RSP: the agent has closed the endpoint, nothing follows."""
        if not self._closing:
            self.let_endpoint_speak()
            self._start_closing(f"endpoint: {error}" if error else "endpoint closed")
            self.front.close(error)
        self._forget()

    def on_ended(self) -> None:
        """END: the endpoint sends no more, but may still read."""
        if self._closing or self._agent_ended:
            return
        self._agent_ended = True
        self.let_endpoint_speak()
        if self.front.end_of_data():
            self._watch_half_open()
        else:
            self.front_gone("endpoint closed")

    def on_agent_lost(self, reason: str) -> None:
        if not self._closing:
            self._held_back = None
            self._start_closing("agent lost")
            self.front.close(reason)
        self._forget()

    def close_overrun(self, reason: str) -> None:
        self._core.notes.warning(
            "connection closed: its frontend does not keep up", connection=self.connect_id, why=reason
        )
        self._start_closing("stalled frontend")
        self.front.close(reason)
        self.outlet.discard()
        self.outlet.then(p.CloseRequest(self.connect_id))
        self._timer = self._core.timers.after(CLOSING_SECONDS_MAX, self._give_up)

    # --- the end

    def _watch_half_open(self) -> None:
        self._moved_before = self._moved
        self._restart_timer(HALF_OPEN_IDLE_SECONDS_MAX, self._check_half_open)

    @property
    def _moved(self) -> int:
        """Bytes in both directions: either may be the one that is still open."""
        return self.inlet.written + self.outlet.granted - self.outlet.credit

    def _check_half_open(self) -> None:
        if self._moved != self._moved_before or self.outlet.backlog:
            self._watch_half_open()
        else:
            self.front.close("half-closed and idle")
            self.front_gone("half-closed and idle")

    def _restart_timer(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._core.timers.after(seconds, action)

    def _start_closing(self, reason: str) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self.agent.guard is not None:
            self.agent.guard.forget(self.inlet)
        self.inlet.sink = NOWHERE
        self._core.route_closed(self, reason)

    def _give_up(self) -> None:
        """The upload could not be flushed, or the agent never answered."""
        self.outlet.discard()
        self.agent.send(p.CloseRequest(self.connect_id))
        self._forget()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.outlet.discard()
        self.agent.forget_route(self)


class DirectRoute:
    """A connection that the server itself dialled: two byte streams, joined."""

    def __init__(self, core: ProxyCore, front: Frontend, port: BytePort) -> None:
        self._core = core
        self.front = front
        self._port = port
        self._closed = False
        self._front_ended = False
        self._endpoint_ended = False
        self.opened_at = core.timers.now()

    def __repr__(self) -> str:
        return f"<DirectRoute {'closed' if self._closed else 'open'}>"

    # --- from the frontend

    def upload(self, data: memoryview) -> None:
        self._port.write(data)
        if self._port.backlog > BOUNDS.outlet_high:
            self.front.pause_reading()

    def front_ended(self) -> None:
        self._front_ended = True
        self._port.finish()
        self._close_if_done()

    def front_gone(self, reason: str) -> None:
        if not self._closed:
            self._close(reason)
            self._port.close()

    @property
    def front_drained(self) -> Callable[[], None]:
        return self._on_front_drained

    def _on_front_drained(self) -> None:
        if not self._closed and self.front.sink.backlog <= BOUNDS.outlet_low:
            self._port.resume_reading()

    # --- from the endpoint

    def on_bytes(self, data: memoryview) -> None:
        sink = self.front.sink
        sink.write(data)
        if sink.backlog > BOUNDS.outlet_high:
            self._port.pause_reading()

    def on_eof(self, gone: bool) -> None:
        self._endpoint_ended = True
        if not self.front.end_of_data():
            self._front_ended = True
        self._close_if_done()

    def on_drained(self) -> None:
        if self._port.backlog <= BOUNDS.outlet_low and not self._closed:
            self.front.resume_reading()

    def on_lost(self, reason: str) -> None:
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

    def _close_if_done(self) -> None:
        if self._front_ended and self._endpoint_ended and not self._closed:
            self._close("both ends closed")
            self.front.close("")
            self._port.close()

    def _close(self, reason: str) -> None:
        self._closed = True
        self._core.route_closed(self, reason)
