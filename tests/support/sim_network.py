"""Byte streams between simulated processes, with the delays, splits and losses of real ones.

A stream has two ``SimPort`` ends, each driven exactly as ``runtime.byte_stream.PlainStream`` is: writes
are gathered until the end of the turn, bytes that the network does not accept are the backlog, and the owner
is notified through a ``ByteHandler``. Bytes arrive late, split differently, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bootbridge.ports.byte_ports import ByteHandler
from bootbridge.proxy_server import agent_port as agent_port_limits
from bootbridge.runtime.http2_transport import Http2Transport
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_budgets import ONE_STREAM
from bootbridge.wire.http2_stream import Stream, StreamHandler
from bootbridge.wire.packets import Buffer
from tests.support.sim_environment import Environment, SimPump

FLUSH_SECONDS_MAX = 30.0
LINGER_SECONDS_MAX = 5.0


class _NoHandler:
    def on_bytes(self, data: memoryview) -> None: ...
    def on_eof(self, gone: bool) -> None: ...
    def on_drained(self) -> None: ...
    def on_lost(self, reason: str) -> None: ...


_NO_HANDLER = _NoHandler()


@dataclass(slots=True)
class NetworkConditions:
    """The delays and limits of the network in one simulation."""

    delay_min: float = 0.0002
    delay_max: float = 0.003
    late_chance: float = 0.02
    late_max: float = 0.3
    chop_chance: float = 0.08
    read_max: int = 4096
    capacity: int = 8192


# Of one caller's connection; as in production, its loss alone does not exceed the control packets.
STREAMS_MAX = 50


def http2_transport(
    port: SimPort,
    *,
    client: bool = False,
    on_request: Callable[[Stream, Headers], StreamHandler] | None = None,
    keepalive_seconds: float,
    agent_port: bool = False,
) -> Http2Transport:
    """Returns the production HTTP/2 transport on a simulated socket; on the agent port with its limits."""
    if agent_port:
        return Http2Transport(
            port,
            on_request=on_request,
            keepalive_seconds=keepalive_seconds,
            streams_max=agent_port_limits.STREAMS_MAX,
            header_bytes_max=agent_port_limits.HEADER_BYTES_MAX,
            budgets=ONE_STREAM,
            unadmitted_seconds=agent_port_limits.UNADMITTED_SECONDS_MAX,
        )
    return Http2Transport(
        port,
        client=client,
        on_request=on_request,
        keepalive_seconds=keepalive_seconds,
        streams_max=STREAMS_MAX,
    )


class Network:
    def __init__(self, env: Environment, conditions: NetworkConditions | None = None) -> None:
        self.env = env
        self.conditions = conditions or NetworkConditions()
        self.ports: dict[SimPort, None] = {}  # every end that is not closed for good
        self._numbers = 0

    def join(self, one: SimPump, other: SimPump, name: str) -> tuple[SimPort, SimPort]:
        """A new stream between two processes."""
        self._numbers += 1
        name = f"{name}#{self._numbers}"
        a, b = SimPort(self, one, f"{name}<"), SimPort(self, other, f"{name}>")
        a.peer, b.peer = b, a
        # A unix socket shows at once that its peer is gone; TCP only when something is sent to it.
        a.reports_gone = b.reports_gone = self.env.chance(0.5)
        return a, b

    def delay(self) -> float:
        conditions, env = self.conditions, self.env
        delay = conditions.delay_min + (conditions.delay_max - conditions.delay_min) * env.random()
        if conditions.late_chance and env.random() < conditions.late_chance:
            delay += conditions.late_max * env.random()
        return delay

    def chunk(self, size: int) -> int:
        conditions = self.conditions
        draw = self.env.random()
        if draw < conditions.chop_chance:
            return min(size, 1 + int(20 * self.env.random()))
        return min(size, conditions.read_max, 1 + int(2 * conditions.read_max * draw))


class SimPort:
    """One end of a stream: a ``BytePort`` for its owner, plus the faults that a scenario injects."""

    peer: SimPort
    reports_gone = False
    half_closes = True  # TLS does not

    def __init__(self, network: Network, pump: SimPump, name: str) -> None:
        self.pump = pump
        self.name = name
        self.backlog = 0
        self.closed = False  # by its owner, for good
        self._network = network
        self._env = network.env
        self._handler: ByteHandler = _NO_HANDLER
        self._out: list[Buffer] = []
        self._inbox = bytearray()
        self._fin = False  # the peer sends no more once the inbox is empty
        self._eof = False
        self._discarded = 0  # bytes accepted for a peer that is gone
        self._reset: str | None = None
        self.unread_lost = False  # a reset took bytes that had arrived and were not read yet
        self._arriving = False
        self._blocked = False
        self._paused = True
        self._started = False  # until it is accepted, everything waits in the kernel
        self._finishing = False
        self._closing = False
        self._lingering = False
        self._frozen_until = 0.0
        network.ports[self] = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "closing" if self._closing else "open"
        return f"<SimPort {self.name} {state} backlog {self.backlog}B inbox {len(self._inbox)}B>"

    def start(self, handler: ByteHandler) -> None:
        self._handler = handler
        self._paused = False
        self._started = True
        self._expect()

    # --- reading

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._expect()

    def _expect(self) -> None:
        """Schedules the arrival of bytes, FIN or reset that are in flight to this end."""
        if self._arriving or self.closed or not self._started:
            return
        if self._inbox or self._fin or self._reset:
            self._arriving = True
            self._env.after(self._network.delay(), self._arrive)

    def _arrive(self) -> None:
        if self.pump.put_off(self._arrive):
            return
        self._arriving = False
        if self.closed or not self.pump.alive:
            return
        if self._env.now < self._frozen_until:
            if self._frozen_until != float("inf"):
                self._env.at(self._frozen_until, self._expect)
            return
        if self._reset is not None:
            self._broke(self._reset)
        elif self._closing:
            self._arrive_unwanted()
        elif not self._paused:
            if self._inbox:
                self._arrive_bytes()
            elif self._fin and not self._eof:
                self._arrive_end()
        self._expect_more()

    def _expect_more(self) -> None:
        if not self._paused and not self.closed and (self._inbox or (self._fin and not self._eof)):
            self._expect()

    def _arrive_bytes(self) -> None:
        inbox, pump = self._inbox, self.pump
        size = self._network.chunk(len(inbox))
        pump.read_buffer[:size] = inbox[:size]
        del inbox[:size]
        self._env.record(pump.view[:size], f"{self.name} {size}B" if self._env.tracing else "")
        self._handler.on_bytes(pump.view[:size])
        pump.end_turn()
        pump.scribble(size)
        self.peer._room_made()

    def _arrive_unwanted(self) -> None:
        """Discards bytes that arrive after our close; after the linger time the sender gets a reset."""
        if self._inbox:
            self._inbox.clear()
            self.peer._room_made()
            if not self._lingering and not self.backlog:
                self._close_now()
                self.peer._reset_by_peer("connection reset by peer")
        elif self._fin and not self.backlog:
            self._close_now()

    def _arrive_end(self) -> None:
        self._eof = True
        gone = not self.half_closes or (self.reports_gone and self.peer._closing)
        self._env.record(b"eof", f"{self.name} EOF{' gone' if gone else ''}")
        self._handler.on_eof(gone)
        self.pump.end_turn()
        if self.peer.closed:
            self._room_made()  # a write fails now

    # --- writing

    def write(self, data: Buffer) -> None:
        if self._closing or not data:
            return
        if self._blocked:
            data = bytes(data)
        elif not self._out:
            self.pump.dirty.append(self)
        self._out.append(data)
        self.backlog += len(data)

    def flush(self) -> None:
        if self._blocked or self.closed:
            return
        if self._out and self._send():
            self._handler.on_drained()
        if not self.backlog and (self._closing or self._finishing):
            self._send_fin()

    def _send(self) -> bool:
        """Returns False if it failed, as with EPIPE: the owner is not asked for more."""
        data = b"".join(self._out)
        peer = self.peer
        sent = True
        if peer.closed:  # it is gone: our bytes are answered with a reset
            if self._env.now < peer._frozen_until:
                room = self._network.conditions.capacity - len(peer._inbox)
                peer._inbox += data[:room]
            elif self._fin and not self._eof:
                # Linux accepts these bytes, as many as the socket holds until the reset that answers them
                # arrives. It leaves what the peer has sent before: reading returns it, and then the end.
                room = max(0, self._network.conditions.capacity - self._discarded)
                self._discarded += min(room, len(data))
            else:
                self._reset_by_peer("broken pipe")
                room = len(data)
                sent = False
        else:
            room = max(0, self._network.conditions.capacity - len(peer._inbox))
            peer._inbox += data[:room]
            peer._expect()
        rest = data[room:]
        self._out = [rest] if rest else []
        self.backlog = len(rest)
        self._blocked = bool(rest)
        return sent

    def _room_made(self) -> None:
        if self._blocked and not self.closed:
            self._env.after(self._network.delay(), self._on_writable)

    def _on_writable(self) -> None:
        if self.pump.put_off(self._on_writable):
            return
        if self._blocked and not self.closed and self.pump.alive:
            self._blocked = False
            self.flush()
            self.pump.end_turn()

    # --- ending

    @property
    def unread(self) -> bool:
        return not self.closed and bool(self.backlog or self.peer._inbox)

    def finish(self) -> bool:
        if not self.half_closes:
            self.close()
            return False
        self._finishing = True
        if not self.backlog:
            self._send_fin()
        return True

    def _send_fin(self) -> None:
        self.peer._fin = True
        self.peer._expect()
        if self._closing:
            if self._eof:
                self._close_now()
            elif not self._lingering:
                self._lingering = True
                self._paused = False
                self._expect()
                self._env.after(LINGER_SECONDS_MAX, self._stop_lingering)

    def _stop_lingering(self) -> None:
        self._lingering = False
        if not self.closed:
            self._close_now()

    def close(self) -> None:
        if self._closing or self.closed:
            return
        self._closing = True
        self._handler = _NO_HANDLER
        self._paused = False
        if self.backlog:
            self._env.after(FLUSH_SECONDS_MAX, self._give_up_flushing)
        else:
            self._send_fin()

    def _give_up_flushing(self) -> None:
        if self.backlog and not self.closed:
            self.abort()

    def abort(self) -> None:
        if not self.closed:
            self._close_now()
            self.peer._reset_by_peer("connection reset by peer")

    def _reset_by_peer(self, reason: str) -> None:
        if not self.closed and self._reset is None:
            self._reset = reason
            self.unread_lost = bool(self._inbox)
            self._inbox.clear()
            self._expect()

    def _broke(self, reason: str) -> None:
        handler = self._handler
        self._close_now()
        self._env.record(b"lost", f"{self.name} LOST {reason}")
        handler.on_lost(reason)
        self.pump.end_turn()

    def _close_now(self) -> None:
        self.closed = self._closing = True
        self._handler = _NO_HANDLER
        self._out = []
        self.backlog = 0
        self._inbox.clear()
        self._network.ports.pop(self, None)
        if self.peer._blocked:
            self.peer._room_made()

    # --- faults

    def cut(self) -> None:
        """The connection breaks under both ends."""
        self._reset_by_peer("connection reset by peer")
        self.peer._reset_by_peer("connection reset by peer")

    def freeze(self, seconds: float) -> None:
        """Nothing arrives here for a while (for ever: a blackhole), without an error."""
        self._frozen_until = max(self._frozen_until, self._env.now + seconds)

    def thaw(self) -> None:
        self._frozen_until = self._env.now
        self._expect()

    @property
    def blackholed(self) -> bool:
        """Whether nothing will ever arrive here again, without an error."""
        return self._frozen_until == float("inf") or not self.peer.pump.alive

    @property
    def doomed(self) -> bool:
        """Whether this connection is already lost, though its owner has not been notified yet."""
        return self.blackholed or self._reset is not None or self._fin

    def vanish(self) -> None:
        """This end's machine loses power: the other end receives nothing any more, not even an error."""
        self._frozen_until = self.peer._frozen_until = float("inf")
        self._close_now()

    def die(self) -> None:
        """This end's process is killed; its kernel sends a FIN if all was read, else a reset."""
        unread = bool(self._inbox) or self.backlog > 0
        self._close_now()
        if unread or self._env.chance(0.5):
            self.peer._reset_by_peer("connection reset by peer")
        else:
            self.peer._fin = True
            self.peer._expect()
