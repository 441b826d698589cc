"""A gRPC stream of packets, and the send queue and receiver of each connection on it.

All connections of an agent share one stream, so nothing here waits for a single connection.
Outgoing: control packets first, then one packet of each send queue in turn. Incoming: bytes go
directly to the connection's sink. They are bounded by credit that the peer must not exceed or, with
a peer that knows no credit, by the stall guard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from bootbridge.bounds import BOUNDS
from bootbridge.errors import PeerError
from bootbridge.metrics import Counter
from bootbridge.ports.byte_ports import PausableSource, Sink
from bootbridge.ports.close_states import PACKET_STREAM, Event, State
from bootbridge.ports.timers import Timers
from bootbridge.tunnel.extension import NONE, Extension
from bootbridge.tunnel.stall_guard import STALLED_SECONDS, StallGuard
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.frames import CANCEL, ENHANCE_YOUR_CALM
from bootbridge.wire.hpack_headers import Headers, values_of
from bootbridge.wire.http2_stream import Stream
from bootbridge.wire.packets import (
    DATA,
    Buffer,
    Credit,
    Packet,
    Unknown,
    data_head,
    decode,
    encode,
    peek_data,
)

NO_LIMIT: Final = 1 << 62
_VERSION_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class StreamCounters:
    """The counters of one kind of packet stream."""

    packets_in: Mapping[int, Counter]
    packets_out: Mapping[int, Counter]
    bytes_in: Counter
    bytes_out: Counter
    stalled_seconds: Counter


class PacketStream:
    """One gRPC stream of packets. Subclasses handle the packets."""

    def __init__(self, stream: Stream, counters: StreamCounters, timers: Timers) -> None:
        self.stream = stream
        self.counters = counters
        self.timers = timers
        self.extension: Extension = NONE
        self.guard: StallGuard | None = None
        # Bytes that may wait in one connection's sink. Without a limit, the sink must pause this stream.
        self.receive_bound = NO_LIMIT
        self.stream_state: State = State.OPEN
        self.receivers: dict[int, Receiver] = {}
        self._reader = grpc.MessageReader(self.on_message)
        self._urgent: deque[bytes] = deque()
        self._turns: deque[SendQueue] = deque()
        self._finish: tuple[int, str] | None = None
        self._data_in = counters.packets_in[DATA]
        self.data_out = counters.packets_out[DATA]

    def bound_receivers(self, extension: Extension, stall_seconds: float) -> None:
        """Selects what bounds the receivers of this stream: credit, or the stall guard."""
        self.extension = extension
        if extension:
            self.receive_bound = BOUNDS.credit + BOUNDS.overdraft
        else:
            self.guard = StallGuard(self.stream, self.timers, stall_seconds)
            self.receive_bound = self.guard.bound

    @property
    def ended(self) -> bool:
        return self.stream_state is not State.OPEN

    def _move_stream(self, event: Event) -> bool:
        """Follows the table; True if the state changed."""
        before = self.stream_state
        self.stream_state = PACKET_STREAM.after(before, event)
        return self.stream_state is not before

    # --- for subclasses

    def on_packet(self, packet: Packet) -> None:
        raise NotImplementedError

    def on_gone(self, status: int, reason: str) -> None:
        """The stream is over, ended by either side. Called once."""
        raise NotImplementedError

    def on_headers(self, headers: Headers, end: bool) -> None: ...

    # --- receiving

    def on_data(self, buffer: Buffer, start: int, end: int) -> None:
        try:
            if not self._reader.mid_message and end - start > grpc.PREFIX_SIZE:
                # Nearly every frame has exactly one message: skip the reader.
                compressed, size = grpc.PREFIX.unpack_from(buffer, start)
                if start + grpc.PREFIX_SIZE + size == end and not compressed:
                    self.on_message(buffer, start + grpc.PREFIX_SIZE, end)
                    return
            self._reader.receive(buffer, start, end)
        except PeerError as error:
            self.fail(error.code or grpc.INTERNAL, str(error))

    def on_message(self, buffer: Buffer, start: int, end: int) -> None:
        peeked = peek_data(buffer, start, end)
        if peeked is not None:
            receiver = self.receivers.get(peeked[0])
            if receiver is not None:
                self._data_in.value += 1
                self.counters.bytes_in.value += end - peeked[1]
                receiver.deliver(memoryview(buffer)[peeked[1] : end])
                return
        if not self.ended:
            packet = decode(buffer[start:end])
            if not isinstance(packet, Unknown):
                self.counters.packets_in[packet.type].value += 1
                self.on_packet(packet)

    def on_end(self) -> None:
        self._over(grpc.OK, "stream closed by the peer")

    def on_reset(self, code: int, reason: str) -> None:
        self._over(grpc.CANCELLED if code == CANCEL else grpc.UNAVAILABLE, reason)

    def fail(self, status: int, reason: str) -> None:
        """Ends the stream from our side, after an error of the peer."""
        if self._move_stream(Event.CLOSE):
            self.finish(status, reason)  # before on_gone, which would finish with OK
            self._on_ended(status, reason)

    def _over(self, status: int, reason: str) -> None:
        if self._move_stream(Event.PEER_ENDS):
            self._on_ended(status, reason)

    def _on_ended(self, status: int, reason: str) -> None:
        self.on_gone(status, reason)
        if self.guard is not None:
            self.guard.close()

    # --- sending

    def send(self, packet: Packet) -> None:
        """Sends a control packet, ahead of all queued data."""
        if self.stream.local_closed:
            return
        self.counters.packets_out[packet.type].value += 1
        body = encode(packet)
        message = grpc.message_prefix(len(body)) + body
        if self._urgent or not self.stream.ready:
            self._urgent.append(message)
            if len(self._urgent) == BOUNDS.control_packets:
                self.timers.after(0.0, self._reset_unread_stream)  # not in the middle of the present event
        else:
            self.stream.send(message)

    def _reset_unread_stream(self) -> None:
        """Resets the stream of a peer that provokes control packets and does not read them."""
        if len(self._urgent) >= BOUNDS.control_packets:
            self._over(grpc.RESOURCE_EXHAUSTED, f"too many unread control packets: {len(self._urgent)}")
            self._urgent.clear()
            self.stream.reset(ENHANCE_YOUR_CALM)

    @property
    def idle(self) -> bool:
        """Whether data can be sent now, because nothing is queued."""
        return not self._turns and not self._urgent and self.stream.ready

    def wait_for_turn(self, send_queue: SendQueue) -> None:
        self._turns.append(send_queue)

    def on_ready(self) -> None:
        stream = self.stream
        while stream.ready:
            if self._urgent:
                stream.send(self._urgent.popleft())
            elif self._turns:
                send_queue = self._turns.popleft()
                if send_queue.send_one():
                    self._turns.append(send_queue)
            else:
                if self._finish is not None and self.stream_state is State.CLOSING:
                    self._send_trailers()
                return

    def finish(self, status: int, message: str = "") -> None:
        """Ends the call (server side) behind everything accepted so far."""
        if self.stream.local_closed or not self._move_stream(Event.FINISH):
            return
        self._finish = (status, message)
        if self.idle:
            self._send_trailers()

    def _send_trailers(self) -> None:
        assert self._finish is not None
        self._move_stream(Event.FLUSHED)
        self.stream.send_headers(grpc.trailers(*self._finish), end=True)

    @property
    def has_unsent(self) -> bool:
        """Whether accepted bytes have not been passed to the HTTP/2 connection yet."""
        return bool(self._turns or self._urgent) or self.stream.has_tail

    def stalled_receivers(self) -> int:
        """Returns how many connections have stopped at a sink on this side.

        With credit the peer pauses the source, and counts a stalled socket; a send queue is counted here.
        """
        if self.guard is not None:
            return self.guard.stalled_count(self.timers.now())
        sinks = [receiver.sink for receiver in self.receivers.values()]
        return sum(isinstance(sink, SendQueue) and sink.stalled for sink in sinks)

    @property
    def queued_bytes(self) -> int:
        return sum(send_queue.backlog for send_queue in self._turns)


def peer_version(headers: Headers, field: str) -> str:
    """Returns product and version of a peer, as it names itself: ``bootbridge/0.1.0``, ``grpc-go/1.60.1``."""
    return " ".join(values_of(headers, field))[:_VERSION_CHARS_MAX]


def _nothing() -> None:
    return None


class SendQueue:
    """Sends the bytes of one connection on a packet stream, within the peer's credit and in turn with others.

    Pauses its source above ``BOUNDS.send_queue_high``.
    """

    __slots__ = (
        "_after",
        "_chunks",
        "_head",
        "_head_size",
        "_paused_at",
        "_waiting",
        "backlog",
        "connect_id",
        "credit",
        "granted",
        "on_drained",
        "packet_max",
        "source",
        "stream",
    )

    def __init__(self, stream: PacketStream, connect_id: int, source: PausableSource) -> None:
        self.stream = stream
        self.connect_id = connect_id
        self.source = source
        self.credit = stream.extension.credit or NO_LIMIT
        self.granted = self.credit  # in total: sent bytes are the difference to ``credit``
        self.backlog = 0
        self.packet_max = NO_LIMIT  # payload bytes of one DATA packet
        self.on_drained: Callable[[], None] = _nothing
        self._chunks: deque[Buffer] = deque()  # bytes, or a view of them
        self._after: list[tuple[Packet, Callable[[], None]]] = []
        self._waiting = False
        self._paused_at: float | None = None
        self._head = b""
        self._head_size = -1

    def __repr__(self) -> str:
        return f"<SendQueue {self.connect_id} {self.backlog}B credit {min(self.credit, 1 << 40)}>"

    @property
    def sent(self) -> int:
        """How many bytes were passed to the stream."""
        return self.granted - self.credit

    def write(self, data: Buffer) -> None:
        stream = self.stream
        if self.credit > 0 and not self._chunks and stream.idle:
            if len(data) <= self.packet_max:
                self._send(data)
                self.on_drained()
                return
            data = self._send_in_parts(data)
            if not data:
                self.on_drained()
                return
        self._chunks.append(bytes(data))
        self.backlog += len(data)
        self._wait_for_turn()
        if self.backlog >= BOUNDS.send_queue_high and self._paused_at is None:
            self._paused_at = stream.timers.now()
            self.source.pause_reading()

    def _send_in_parts(self, data: Buffer) -> Buffer:
        """Sends packets of the permitted size until the stream is full; returns the rest."""
        rest = memoryview(data)
        packet_max = self.packet_max
        while rest and self.stream.idle:
            self._send(rest[:packet_max])
            rest = rest[packet_max:]
        return rest

    def _send(self, data: Buffer) -> None:
        size = len(data)
        if size != self._head_size:
            packet_head = data_head(self.connect_id, size)
            self._head = grpc.message_prefix(len(packet_head) + size) + packet_head
            self._head_size = size
        self.credit -= size
        stream = self.stream
        stream.data_out.value += 1
        stream.counters.bytes_out.value += size
        stream.stream.send(self._head, data)

    def send_one(self) -> bool:
        """Sends one packet. True if another can be sent."""
        self._waiting = False
        if self._chunks and self.credit > 0:
            chunk = self._chunks.popleft()
            if len(chunk) > self.packet_max:
                view = memoryview(chunk)
                self._chunks.appendleft(view[self.packet_max :])
                chunk = view[: self.packet_max]
            self.backlog -= len(chunk)
            self._send(chunk)
            if self._paused_at is not None and self.backlog <= BOUNDS.send_queue_low:
                self._resume()
            self.on_drained()
        if not self._chunks:
            self._send_after()
        self._waiting = bool(self._chunks) and self.credit > 0
        return self._waiting

    @property
    def stalled(self) -> bool:
        """Whether the source has been paused for so long that the receiver seems to have stopped."""
        paused_at = self._paused_at
        return paused_at is not None and self.stream.timers.now() - paused_at >= STALLED_SECONDS

    def _resume(self) -> None:
        if self._paused_at is not None:
            self.stream.counters.stalled_seconds.value += self.stream.timers.now() - self._paused_at
            self._paused_at = None
            self.source.resume_reading()

    def grant(self, size: int) -> None:
        self.credit += size
        self.granted += size
        if self._chunks:
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._waiting and self.credit > 0:
            self._waiting = True
            self.stream.wait_for_turn(self)
            if self.stream.stream.ready:
                self.stream.on_ready()

    def then(self, packet: Packet, sent: Callable[[], None] = _nothing) -> None:
        """Sends a packet behind all bytes written so far, then calls ``sent``."""
        self._after.append((packet, sent))
        if not self._chunks:
            self._send_after()

    def _send_after(self) -> None:
        after, self._after = self._after, []
        for packet, sent in after:
            self.stream.send(packet)
            sent()

    def discard(self) -> None:
        """Drops queued bytes and packets."""
        self._chunks.clear()
        self.backlog = 0
        self._after.clear()
        self._resume()


class ReceiverOwner(Protocol):
    def close_overrun(self, reason: str) -> None:
        """Closes this connection, because its bytes exceed their bound."""


class Receiver:
    """Passes received bytes of one connection to its sink, and returns credit as the sink drains."""

    __slots__ = ("_bound", "_credit", "_returned", "connect_id", "owner", "sink", "stream", "written")

    def __init__(self, stream: PacketStream, connect_id: int, sink: Sink, owner: ReceiverOwner) -> None:
        self.stream = stream
        self.connect_id = connect_id
        self.sink = sink
        self.owner = owner
        self.written = 0
        self._returned = 0
        self._credit = BOUNDS.credit if stream.extension else 0
        self._bound = stream.receive_bound

    def deliver(self, data: memoryview) -> None:
        self.written += len(data)
        self.sink.write(data)
        if self.sink.backlog > self._bound:
            self._over_bound()

    def _over_bound(self) -> None:
        if self.stream.guard is not None:
            self.stream.guard.watch(self)
        else:
            self.owner.close_overrun("credit exceeded")

    @property
    def taken(self) -> int:
        """How many bytes the sink has passed on."""
        return self.written - self.sink.backlog

    def drained(self) -> None:
        """The sink has passed on some bytes: grants the peer as many."""
        taken = self.written - self.sink.backlog
        fresh = taken - self._returned
        if self._credit:
            if fresh >= self._credit // 4:
                self._returned = taken
                self.stream.send(Credit(self.connect_id, fresh))
        elif fresh:
            self._returned = taken
            if self.stream.guard is not None:
                self.stream.guard.on_drained(self, fresh)
