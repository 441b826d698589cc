"""The protocol core of the agent: its streams to servers, and the endpoints that it dials for them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final

from bootbridge.metrics import Counter
from bootbridge.ports.byte_ports import Dialler
from bootbridge.ports.event_log import EventLog
from bootbridge.ports.timers import Timers
from bootbridge.tunnel import extension
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.dial_record import REFUSED, DialHistory
from bootbridge.tunnel.endpoint import AGENT_TO_ENDPOINT, Endpoint, EndpointDial
from bootbridge.tunnel.packet_stream import PacketStream, StreamCounters, peer_version
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.addresses import ADDRESS_CHARS_MAX, TOO_LONG_TEXT
from bootbridge.wire.frames import CANCEL
from bootbridge.wire.hpack_headers import Headers, values_of
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream

CONNECT_PATH: Final = "/AgentService/Connect"


class ServerStream(PacketStream):
    """The agent's side of one Connect stream to a server."""

    def __init__(self, core: AgentCore, stream: Stream, on_answer: Callable[[ServerStream], None]) -> None:
        super().__init__(stream, core.counters, core.timers)
        self.core = core
        self.connected_at = core.timers.now()
        self.version = ""
        self.server_id = ""
        self.server_count = 0
        self.connected = False
        self.error = ""
        self.closed_by_us = False  # its end does not count as a failure
        self.dials: dict[int, EndpointDial] = {}
        self.endpoints: dict[int, Endpoint] = {}
        self.on_ended: Callable[[ServerStream], None] = on_answer
        self._on_answer = on_answer
        self._last_connect_id = 0
        self._closed_bytes_up = 0  # of endpoints that it has no more
        self._closed_bytes_down = 0

    def __repr__(self) -> str:
        return f"<ServerStream {self.server_id!r} {len(self.endpoints)} endpoints, {len(self.dials)} dials>"

    @property
    def stalled_down(self) -> int:
        """Returns how many connections wait for the server or their caller; see `stalled_receivers`."""
        return sum([endpoint.send_queue.stalled for endpoint in self.endpoints.values()])

    @property
    def stalled_connections(self) -> int:
        return self.stalled_down + self.stalled_receivers()

    # --- greeting

    def on_headers(self, headers: Headers, end: bool) -> None:
        if end:
            status, message = grpc.status_of(headers)
            if status != grpc.OK or not self.connected:
                self.error = message or f"the server ended the stream with status {status}"
            return
        ids, counts = values_of(headers, "serverid"), values_of(headers, "servercount")
        if len(ids) != 1:
            self.fail(grpc.INTERNAL, f"expected one server ID in the context, got [{' '.join(ids)}]")
        elif len(counts) != 1 or not (counts[0].isascii() and counts[0].isdigit() and len(counts[0]) < 9):
            self.fail(grpc.INTERNAL, f"expected one server count, got {len(counts)}")
        else:
            self.server_id, self.server_count = ids[0], int(counts[0])
            self.version = peer_version(headers, "server")
            self.connected_at = self.core.timers.now()
            agreed = extension.parse(values_of(headers, extension.KEY))
            self.bound_receivers(agreed, self.core.stall_seconds)
            self.connected = True
            self.core.streams[self] = None
            self._on_answer(self)

    # --- packets

    def on_packet(self, packet: p.Packet) -> None:
        match packet:
            case p.DialRequest(protocol, address, random):
                self._on_dial(protocol, address, random)
            case p.CloseRequest(connect_id):
                endpoint = self.endpoints.get(connect_id)
                if endpoint is not None:
                    endpoint.on_close_request()
                else:
                    self.send(p.CloseResponse("Unknown connectID", connect_id))
            case p.Credit(connect_id, size) if self.extension:
                endpoint = self.endpoints.get(connect_id)
                if endpoint is not None and size > 0:
                    endpoint.send_queue.grant(size)
            case p.End(connect_id) if self.extension:
                endpoint = self.endpoints.get(connect_id)
                if endpoint is not None:
                    endpoint.on_server_ended()
            case p.Reset(connect_id) if self.extension:
                endpoint = self.endpoints.get(connect_id)
                if endpoint is not None:
                    endpoint.on_reset_request()
                else:
                    self.send(p.CloseResponse("Unknown connectID", connect_id))
            case p.CloseDial(random):
                dial = self.dials.pop(random, None)
                if dial is not None:
                    dial.cancel()
            case p.Data(connect_id, data) if connect_id != 0:
                self._on_uncommon_data(connect_id, data)
            case _:
                pass

    def _on_dial(self, protocol: str, address: str, random: int) -> None:
        if random in self.dials:
            self.send(p.DialResponse("a dial with this id is already pending", 0, random))
            return
        core, now = self.core, self.timers.now()
        record = core.dial_history.start(core.next_record_id(), self.server_id, "", address, now)
        if len(protocol) + len(address) > ADDRESS_CHARS_MAX:
            core.metrics.endpoint_dial_failure_total.labels("unknown").value += 1
            core.dial_history.failed(record, now, REFUSED, AGENT_TO_ENDPOINT, TOO_LONG_TEXT)
            self.send(p.DialResponse(TOO_LONG_TEXT, 0, random))
            return
        dial = self.dials[random] = EndpointDial(self, address, random, record)
        dial.pending = self.core.dialler.dial(protocol, address, dial)

    def _on_uncommon_data(self, connect_id: int, data: bytes) -> None:
        """DATA in an encoding that the fast path does not parse, or for an unknown connection."""
        receiver = self.receivers.get(connect_id)
        if receiver is None:
            self.send(p.CloseResponse("unrecognized connectID", connect_id))
        elif data:
            self.counters.bytes_in.value += len(data)
            receiver.deliver(memoryview(data))

    def next_connect_id(self) -> int:
        self._last_connect_id += 1
        return self._last_connect_id

    def add_endpoint(self, endpoint: Endpoint) -> None:
        self.endpoints[endpoint.connect_id] = endpoint
        self.receivers[endpoint.connect_id] = endpoint.receiver

    @property
    def bytes_from_server(self) -> int:
        return self._closed_bytes_up + sum(endpoint.bytes_up for endpoint in self.endpoints.values())

    @property
    def bytes_to_server(self) -> int:
        return self._closed_bytes_down + sum(endpoint.bytes_down for endpoint in self.endpoints.values())

    def forget_endpoint(self, endpoint: Endpoint) -> None:
        self._closed_bytes_up += endpoint.bytes_up
        self._closed_bytes_down += endpoint.bytes_down
        if self.endpoints.pop(endpoint.connect_id, None) is not None:
            del self.receivers[endpoint.connect_id]
        self.core.changed()

    # --- the end

    def fail(self, status: int, reason: str) -> None:
        self._over(status, reason)
        self.stream.reset(CANCEL)

    def on_gone(self, status: int, reason: str) -> None:
        self.error = self.error or reason
        self.core.streams.pop(self, None)
        if self.connected and not self.closed_by_us and status != grpc.OK:
            self.core.metrics.server_connection_failure_count.labels("from_server").value += 1
            self.core.metrics.stream_errors_total.labels(
                "to_agent", grpc.STATUS_NAMES[status], "Unknown"
            ).value += 1
        for dial in self.dials.values():
            dial.cancel()
        self.dials.clear()
        for endpoint in list(self.endpoints.values()):
            endpoint.on_server_lost()
        self.endpoints.clear()
        self.receivers.clear()
        self.on_ended(self)
        self.core.changed()


class AgentCore:
    def __init__(
        self,
        *,
        agent_id: str,
        identifiers: str,
        stall_seconds: float,
        timers: Timers,
        wall_clock: Callable[[], float],
        metrics: AgentMetrics,
        event_log: EventLog,
        dialler: Dialler,
    ) -> None:
        self.agent_id = agent_id
        self.identifiers = identifiers
        self.stall_seconds = stall_seconds
        self.timers = timers
        self.metrics = metrics
        self.event_log = event_log
        self.dialler = dialler
        self.draining = False
        self.dial_history = DialHistory(wall_clock)
        self._record_ids = count(1)
        self.streams: dict[ServerStream, None] = {}  # those that the server accepted, oldest first
        self.changed: Callable[[], None] = lambda: None
        self.counters = _counters(metrics)
        metrics.open_server_connections.set_function(lambda: len(self.streams))
        metrics.open_endpoint_connections.set_function(lambda: self.endpoint_count)
        metrics.queued_bytes.labels("to_server").set_function(
            lambda: sum(e.send_queue.backlog for s in self.streams for e in s.endpoints.values())
        )
        metrics.queued_bytes.labels("to_endpoint").set_function(
            lambda: sum(e.receiver.sink.backlog for s in self.streams for e in s.endpoints.values())
        )

        metrics.stalled_connections.labels("to_server").set_function(
            lambda: sum(stream.stalled_down for stream in self.streams)
        )
        metrics.stalled_connections.labels("to_endpoint").set_function(
            lambda: sum(stream.stalled_receivers() for stream in self.streams)
        )

    def connect(
        self,
        connection: Http2Connection,
        authority: str,
        token: str | None,
        on_answer: Callable[[ServerStream], None],
    ) -> ServerStream:
        """Calls Connect. ``on_answer`` is called when the server has answered or the stream is over."""
        metadata = [
            ("agentid", self.agent_id),
            ("agentidentifiers", self.identifiers),
            (extension.KEY, extension.offer()),
        ]
        if token is not None:
            metadata.append(("authorization", f"Bearer {token}"))
        headers = grpc.request_headers(CONNECT_PATH, authority, metadata)
        return connection.open_stream(headers, lambda stream: ServerStream(self, stream, on_answer))

    def next_record_id(self) -> int:
        """Returns a number for a record: connection ids are unique only within a stream."""
        return next(self._record_ids)

    @property
    def endpoint_count(self) -> int:
        return sum(len(stream.endpoints) for stream in self.streams)

    @property
    def idle(self) -> bool:
        return not any(stream.endpoints or stream.dials or stream.has_unsent for stream in self.streams)

    def drain(self) -> None:
        """Asks the servers to prefer other agents. Established connections and dials continue."""
        self.draining = True
        for stream in self.streams:
            stream.send(p.Drain())


def _counters(metrics: AgentMetrics) -> StreamCounters:
    packets, transferred = metrics.stream_packets_total, metrics.transferred_bytes_total
    stalled: Counter = metrics.stalled_seconds_total.labels("to_server")
    return StreamCounters(
        packets_in={kind: packets.labels("to_agent", name) for kind, name in p.TYPE_NAMES.items()},
        packets_out={kind: packets.labels("from_agent", name) for kind, name in p.TYPE_NAMES.items()},
        bytes_in=transferred.labels("to_endpoint"),
        bytes_out=transferred.labels("to_server"),
        stalled_seconds=stalled,
    )
