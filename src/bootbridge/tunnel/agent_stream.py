"""The server's side of one Connect stream of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bootbridge.ports.close_states import Event
from bootbridge.ports.timers import Timers
from bootbridge.tunnel import extension
from bootbridge.tunnel.identifiers import AgentIdentifiers, parse_identifiers
from bootbridge.tunnel.packet_stream import PacketStream, StreamCounters
from bootbridge.tunnel.route import AgentRoute
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.hpack_headers import Headers, values_of
from bootbridge.wire.http2_stream import Stream

if TYPE_CHECKING:
    from bootbridge.tunnel.proxy_core import Dial, ProxyCore


class AgentStream(PacketStream):
    """Is registered once it is authenticated. Its routes and pending dials end with it."""

    def __init__(
        self, core: ProxyCore, stream: Stream, counters: StreamCounters, timers: Timers, headers: Headers
    ) -> None:
        super().__init__(stream, counters, timers)
        self._core = core
        self.agent_id, self.identifiers = parse_agent_metadata(headers)
        self.draining = False
        self._suspected_at = -1
        self.connected_at = timers.now()
        self.dials: dict[int, Dial] = {}
        self.routes: dict[int, AgentRoute] = {}
        self.bound_receivers(extension.parse(values_of(headers, extension.KEY)), core.limits.stall_seconds)

    def __repr__(self) -> str:
        return f"<AgentStream {self.agent_id!r} {len(self.routes)} routes, {len(self.dials)} dials>"

    @property
    def silent(self) -> bool:
        """Whether nothing was received since it left a dial unanswered."""
        return self.stream.connection.reads_seen == self._suspected_at

    @property
    def last_resort(self) -> bool:
        return self.draining or self.silent

    def suspect(self) -> None:
        """A dial was not answered in time: pings the agent, and makes it the last resort until it sends."""
        self._suspected_at = self.stream.connection.reads_seen
        self.stream.connection.on_suspected()

    @property
    def route_count(self) -> int:
        return len(self.routes) + len(self.dials)

    def accept(self, server_id: str, server_count: int) -> None:
        agreed = ((extension.KEY, extension.offer()),) if self.extension else ()
        metadata = (("serverid", server_id), ("servercount", str(server_count)), *agreed)
        self.stream.send_headers(grpc.response_headers(metadata))

    def deny(self, reason: str) -> None:
        self._move_stream(Event.CLOSE)
        self.stream.send_headers(grpc.refusal(grpc.UNKNOWN, reason), end=True)

    def add_route(self, route: AgentRoute) -> None:
        self.routes[route.connect_id] = route
        self.receivers[route.connect_id] = route.receiver

    def forget_route(self, route: AgentRoute) -> None:
        if self.routes.get(route.connect_id) is route:
            del self.routes[route.connect_id]
            del self.receivers[route.connect_id]

    def on_packet(self, packet: p.Packet) -> None:
        match packet:
            case p.DialResponse():
                self._core.on_dial_response(self, packet)
            case p.CloseResponse(error, connect_id):
                route = self.routes.get(connect_id)
                if route is not None:
                    route.on_closed(error)
            case p.Credit(connect_id, size) if self.extension:
                route = self.routes.get(connect_id)
                if route is not None and size > 0:
                    route.send_queue.grant(size)
            case p.End(connect_id) if self.extension:
                route = self.routes.get(connect_id)
                if route is not None:
                    route.on_ended()
            case p.Data(connect_id, data):
                self._on_uncommon_data(connect_id, data)
            case p.CloseDial(random):
                self._core.on_dial_cancelled_by_agent(self, random)
            case p.Drain():
                self.draining = True
                self._core.event_log.info("agent draining", agent=self.agent_id)
            case _:
                pass

    def _on_uncommon_data(self, connect_id: int, data: bytes) -> None:
        """DATA in an encoding that the fast path does not parse, or for an unknown connection."""
        receiver = self.receivers.get(connect_id)
        if receiver is not None:
            if data:
                receiver.deliver(memoryview(data))
        elif connect_id != 0:
            self.send(p.CloseRequest(connect_id))

    def on_gone(self, status: int, reason: str) -> None:
        self._core.on_agent_gone(self, status, reason)
        self.finish(grpc.OK)


class InvalidAgentMetadata(ValueError):
    """Invalid metadata of a Connect call."""


def parse_agent_metadata(headers: Headers) -> tuple[str, AgentIdentifiers]:
    ids = values_of(headers, "agentid")
    if len(ids) != 1:
        raise InvalidAgentMetadata(f"expected one agent ID in the context, got [{' '.join(ids)}]")
    texts = values_of(headers, "agentidentifiers")
    if len(texts) > 1:
        raise InvalidAgentMetadata(
            f"expected at most one set of agent identifiers in the context, got [{' '.join(texts)}]"
        )
    try:
        return ids[0], parse_identifiers(texts[0] if texts else "")
    except ValueError as error:
        raise InvalidAgentMetadata(str(error)) from error
