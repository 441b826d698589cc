"""The server's side of one Connect stream of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bootbridge.ports.close_states import Event
from bootbridge.ports.timers import Timers
from bootbridge.tunnel import extension
from bootbridge.tunnel.agent_credentials import AgentCredentials
from bootbridge.tunnel.identifiers import NO_IDENTIFIERS, parse_identifiers
from bootbridge.tunnel.packet_stream import PacketStream, StreamCounters, peer_version
from bootbridge.tunnel.route import AgentRoute
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.hpack_headers import Headers, values_of
from bootbridge.wire.http2_stream import Stream

if TYPE_CHECKING:
    from bootbridge.tunnel.dial import Dial
    from bootbridge.tunnel.proxy_core import ProxyCore


NOT_RETIRED: Final = -1.0
TOO_EARLY_TEXT: Final = "packet received before the agent was admitted"


class AgentStream(PacketStream):
    """Is registered once it is authenticated. Its routes and pending dials end with it."""

    def __init__(
        self, core: ProxyCore, stream: Stream, counters: StreamCounters, timers: Timers, headers: Headers
    ) -> None:
        super().__init__(stream, counters, timers)
        self._core = core
        self.agent_id, self._identifiers_text = agent_metadata(headers)
        self.identifiers = NO_IDENTIFIERS  # until it is admitted: parsing costs more than all else
        self.ignored_identifiers: tuple[str, ...] = ()
        self.credentials: list[AgentCredentials] = []
        self.retired_at = NOT_RETIRED
        self.retirement_reason = ""
        self.draining = False
        self.address = ""  # of its connection
        self.version = peer_version(headers, "user-agent")
        self.dials_succeeded = 0
        self.dials_failed = 0
        self._closed_bytes_up = 0  # of routes that it has no more
        self._closed_bytes_down = 0
        self._admitted = False
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

    @property
    def bytes_to_agent(self) -> int:
        return self._closed_bytes_up + sum(route.bytes_up for route in self.routes.values())

    @property
    def bytes_from_agent(self) -> int:
        return self._closed_bytes_down + sum(route.bytes_down for route in self.routes.values())

    @property
    def queued_up(self) -> int:
        return sum([route.send_queue.backlog for route in self.routes.values()])

    @property
    def queued_down(self) -> int:
        return sum([receiver.sink.backlog for receiver in self.receivers.values()])

    @property
    def stalled_up(self) -> int:
        """Returns how many connections wait for the agent or their endpoint; see `stalled_receivers`."""
        return sum([route.send_queue.stalled for route in self.routes.values()])

    @property
    def stalled_connections(self) -> int:
        return self.stalled_up + self.stalled_receivers()

    def parse_identifiers(self) -> None:
        """Raises InvalidAgentMetadata."""
        try:
            self.identifiers = parse_identifiers(self._identifiers_text)
        except ValueError as error:
            raise InvalidAgentMetadata(str(error)) from error

    @property
    def retired(self) -> bool:
        """Whether its credentials have ended: it gets no dials, and its open connections may finish."""
        return self.retired_at != NOT_RETIRED

    def retire(self, now: float, reason: str) -> None:
        """Marks it as retired. Our own agent reconnects at once; open connections may finish."""
        self.retired_at = now
        self.retirement_reason = reason
        self.draining = True
        if self.extension:
            self.stream.connection.go_away()

    def credential_problem(self) -> str:
        """Returns why one of its credentials is no longer valid; empty if all are."""
        for each in self.credentials:
            if problem := each.problem():
                return problem
        return ""

    def accept(self, server_id: str, server_count: int) -> None:
        self._admitted = True
        self.stream.connection.count_admitted(1)
        agreed = ((extension.KEY, extension.offer()),) if self.extension else ()
        metadata = (
            ("serverid", server_id),
            ("servercount", str(server_count)),
            ("server", grpc.PRODUCT),
            *agreed,
        )
        self.stream.send_headers(grpc.response_headers(metadata))

    def deny(self, reason: str) -> None:
        self._move_stream(Event.CLOSE)
        self.stream.send_headers(grpc.refusal(grpc.UNKNOWN, reason), end=True)

    def add_route(self, route: AgentRoute) -> None:
        self.routes[route.connect_id] = route
        self.receivers[route.connect_id] = route.receiver

    def forget_route(self, route: AgentRoute) -> None:
        self._closed_bytes_up += route.bytes_up
        self._closed_bytes_down += route.bytes_down
        if self.routes.get(route.connect_id) is route:
            del self.routes[route.connect_id]
            del self.receivers[route.connect_id]

    def on_packet(self, packet: p.Packet) -> None:
        if not self._admitted and (self.draining or not isinstance(packet, p.Drain)):
            # Any peer can get here in token mode: it must cause neither log lines nor answers. Our own agent
            # may send DRAIN, once, if it is stopped while it connects.
            self.deny(TOO_EARLY_TEXT)
            self._core.on_agent_gone(self, grpc.UNKNOWN, TOO_EARLY_TEXT)
            return
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
            case p.Drain() if not self.draining:
                self.draining = True
                if self._admitted:
                    self._core.event_log.info("agent draining", agent=self.agent_id)
            case _:
                pass

    def _on_uncommon_data(self, connect_id: int, data: bytes) -> None:
        """DATA in an encoding that the fast path does not parse, or for an unknown connection."""
        receiver = self.receivers.get(connect_id)
        if receiver is not None:
            if data:
                self.counters.bytes_in.value += len(data)
                receiver.deliver(memoryview(data))
        elif connect_id != 0:
            self.send(p.CloseRequest(connect_id))

    def on_gone(self, status: int, reason: str) -> None:
        self._core.on_agent_gone(self, status, reason)
        self.finish(grpc.OK)


# A node's name has at most 253. The id is in logs, tables and /status.
AGENT_ID_CHARS_MAX = 256
_SHOWN_CHARS_MAX = 200


class InvalidAgentMetadata(ValueError):
    """Invalid metadata of a Connect call."""


def agent_metadata(headers: Headers) -> tuple[str, str]:
    """Returns the id and the text of the identifiers of a Connect call."""
    ids = values_of(headers, "agentid")
    if len(ids) != 1:
        raise InvalidAgentMetadata(f"expected one agent ID in the context, got [{_shown(ids)}]")
    if len(ids[0]) > AGENT_ID_CHARS_MAX:
        raise InvalidAgentMetadata(f"agent ID: more than {AGENT_ID_CHARS_MAX} characters")
    texts = values_of(headers, "agentidentifiers")
    if len(texts) > 1:
        raise InvalidAgentMetadata(
            f"expected at most one set of agent identifiers in the context, got [{_shown(texts)}]"
        )
    return ids[0], texts[0] if texts else ""


def _shown(values: list[str]) -> str:
    return " ".join(values)[:_SHOWN_CHARS_MAX]
