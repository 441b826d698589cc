"""The protocol core of the server: frontends, dials, the agent registry and routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Final, Protocol

from bootbridge.metrics import Counter, Family
from bootbridge.ports.byte_ports import Dialler
from bootbridge.ports.event_log import EventLog
from bootbridge.ports.throttled_log import ThrottledLog
from bootbridge.ports.timers import Timer, Timers
from bootbridge.tunnel.agent_admission import AgentAdmission
from bootbridge.tunnel.agent_credentials import AgentCredentials
from bootbridge.tunnel.agent_registry import AgentRegistry, Strategy
from bootbridge.tunnel.agent_stream import AgentStream, InvalidAgentMetadata
from bootbridge.tunnel.allowed_identifiers import AllowedIdentifiers
from bootbridge.tunnel.backend_selection import DirectBackend, NoBackend, ready, select_backend
from bootbridge.tunnel.dial import Dial, DirectDial
from bootbridge.tunnel.dial_record import (
    AGENT_LOST,
    BY_CALLER,
    BY_SERVER,
    CANCELLED,
    NO_AGENT,
    REFUSED,
    TIMED_OUT,
    DialHistory,
    DialRecord,
)
from bootbridge.tunnel.frontend import ConnectFrontend, DialFailure, DialFailureCause, Frontend, GrpcFrontend
from bootbridge.tunnel.packet_stream import StreamCounters
from bootbridge.tunnel.refused_call import RefusedCall, refused_call
from bootbridge.tunnel.route import AgentRoute, DirectRoute
from bootbridge.tunnel.server_metrics import ServerMetrics
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.addresses import ADDRESS_CHARS_MAX, TOO_LONG_TEXT, IPNetwork
from bootbridge.wire.hpack_headers import Headers, values_of
from bootbridge.wire.http2_stream import Stream, StreamHandler

AGENT_PATH: Final = "/AgentService/Connect"
PROXY_PATH: Final = "/ProxyService/Proxy"
# kube-apiserver gives up a dial after 30 s; a longer dial would be a leak.
DIAL_SECONDS_MAX: Final = 30.0
AGENT_LOST_TEXT: Final = "the agent's connection was lost"
STOPPING_TEXT: Final = "the proxy server is shutting down"


# Called with None if an agent's credentials are valid, else with the reason; and with its token's properties.
Authenticated = Callable[[str | None, AgentCredentials | None], None]


class Authenticator(Protocol):
    """Checks an agent's credentials and calls ``done``.

    ``source`` is what shares are counted by. The result cancels the check.
    """

    def __call__(self, authorization: list[str], source: str, done: Authenticated) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    dial_seconds: float = DIAL_SECONDS_MAX
    stall_seconds: float = 10.0
    agent_age_seconds: float = 0.0  # 0: none
    first_agent_seconds: float = 0.0  # how long after the start dials wait for an agent


class ProxyCore:
    def __init__(
        self,
        *,
        strategies: Sequence[Strategy],
        direct_cidrs: Sequence[IPNetwork] = (),
        server_id: str,
        server_count: Callable[[], int],
        limits: Limits,
        timers: Timers,
        wall_clock: Callable[[], float],
        rng: Random,
        metrics: ServerMetrics,
        event_log: EventLog,
        dialler: Dialler,
        authenticate: Authenticator | None = None,
        allowed_identifiers: AllowedIdentifiers | None = None,
    ) -> None:
        """``wall_clock``: seconds since the epoch, for records. ``allowed_identifiers``: the allow-list for
        all agents; None allows everything."""
        self.strategies = tuple(strategies)
        self.direct_cidrs = tuple(direct_cidrs)
        self.server_id = server_id
        self.server_count = server_count
        self.limits = limits
        self.timers = timers
        self.metrics = metrics
        self.event_log = event_log
        self._refusals = ThrottledLog(event_log, timers.now)  # peers without credentials cause them
        self.stopping = False
        self.closing = False  # connections that end now are closed by this server
        self.dial_history = DialHistory(wall_clock)
        self.agent_registry: AgentRegistry[AgentStream] = AgentRegistry()
        self.connect_frontends: set[ConnectFrontend] = set()
        self.grpc_frontends: set[GrpcFrontend] = set()
        self.direct_dials: set[DirectDial] = set()
        self.direct_routes: set[DirectRoute] = set()
        # Dials that no agent can take yet. Agents need a moment to find a server that was just started.
        self.early_dials: dict[Dial, None] = {}
        self._start_timer: Timer | None = None
        if limits.first_agent_seconds:
            self._start_timer = timers.after(limits.first_agent_seconds, self._stop_holding_dials)
        # Agents whose credentials are being checked, with what cancels the check.
        self._agents_waiting: dict[AgentStream, Callable[[], None]] = {}
        self._rng = rng
        # Not the callers' ids, which may collide; and small numbers are short on the wire.
        self._dial_ids = count(1)
        self._dialler = dialler
        self._authenticate = authenticate
        self._admission = AgentAdmission(
            self.agent_registry, metrics, event_log, timers, limits.agent_age_seconds, allowed_identifiers
        )
        self._agent_counters = _counters(metrics, "from_agent", "to_agent", "to_frontend", "to_agent")
        self._front_counters = _counters(metrics, "from_client", "to_client", None, "to_frontend")
        self._mirror_tables()

    # --- agents

    def on_agent_request(
        self,
        stream: Stream,
        headers: Headers,
        credentials: AgentCredentials | None = None,
        source: str = "",
        peer: str = "",
    ) -> StreamHandler:
        """Handles a new stream on the agent port; ``credentials``, ``source`` and ``peer`` (address and port)
        are its connection's."""
        refused = refused_call(stream, headers, AGENT_PATH)
        if refused is not None:
            return refused
        try:
            agent = AgentStream(self, stream, self._agent_counters, self.timers, headers)
        except InvalidAgentMetadata as error:
            self._refusals.warning("agent refused", peer=peer, reason=str(error))
            return RefusedCall(stream, grpc.refusal(grpc.UNKNOWN, str(error)))
        agent.address = peer
        if credentials is not None:
            agent.credentials.append(credentials)
        if self._authenticate is None:
            self._admit(agent)
            return agent
        self._agents_waiting[agent] = _nothing
        cancel = self._authenticate(
            values_of(headers, "authorization"),
            source,
            lambda denied, token: self._on_authenticated(agent, denied, token),
        )
        if agent in self._agents_waiting:
            self._agents_waiting[agent] = cancel
        return agent

    def _on_authenticated(
        self, agent: AgentStream, denied: str | None, token: AgentCredentials | None
    ) -> None:
        if self._agents_waiting.pop(agent, None) is None:
            return
        if token is not None:
            agent.credentials.append(token)
        if denied is None:
            self._admit(agent)
        else:
            self._deny(agent, denied)

    def _deny(self, agent: AgentStream, reason: str) -> None:
        self._refusals.warning("agent refused", agent=agent.agent_id, peer=agent.address, reason=reason)
        agent.deny(reason)

    def _admit(self, agent: AgentStream) -> None:
        if problem := agent.credential_problem():
            self._deny(agent, problem)
            return
        try:
            agent.parse_identifiers()
        except InvalidAgentMetadata as error:
            self._deny(agent, str(error))
            return
        self._admission.bound_identifiers(agent)
        agent.accept(self.server_id, self.server_count())
        self.agent_registry.add(agent)
        self.event_log.info(
            "agent connected",
            agent=agent.agent_id,
            extension="credit" if agent.extension else "none",
            agents=len(self.agent_registry),
        )
        self._admission.report_identifiers(agent)
        self._retry_early_dials()

    def recheck_agents(self) -> None:
        """Disconnects agents whose credentials have ended; to be called every few seconds."""
        self._admission.recheck()

    def on_agent_gone(self, agent: AgentStream, status: int, reason: str) -> None:
        cancel = self._agents_waiting.pop(agent, None)
        if cancel is not None:
            cancel()  # or peers that reset their streams would use up the API server's answers
        if not self.agent_registry.remove(agent):
            return
        agent.stream.connection.count_admitted(-1)
        if status != grpc.OK:
            self.count_stream_error("from_agent", status)
        self.event_log.info(
            "agent disconnected",
            agent=agent.agent_id,
            reason=reason,
            routes=len(agent.routes),
            agents=len(self.agent_registry),
        )
        for route in list(agent.routes.values()):
            route.on_agent_lost(AGENT_LOST_TEXT, reason)
        for dial in list(agent.dials.values()):
            self._on_dial_agent_lost(dial, agent)
        agent.dials.clear()

    # --- dials

    def on_proxy_request(self, stream: Stream, headers: Headers, caller: str = "") -> StreamHandler:
        """Handles a new stream on the gRPC frontend; ``caller`` is the address of its connection."""
        refused = refused_call(stream, headers, PROXY_PATH)
        return refused or GrpcFrontend(self, stream, self._front_counters, self.timers, caller)

    def dial(self, front: Frontend, protocol: str, address: str) -> Dial | DirectDial | None:
        """Starts a dial. None: it was refused at once."""
        record = self.dial_history.start(
            next(self._dial_ids), front.caller, front.mode, address, self.timers.now()
        )
        if self.stopping:
            failure = DialFailure(DialFailureCause.NO_AGENT, STOPPING_TEXT)
        elif len(protocol) + len(address) > ADDRESS_CHARS_MAX:
            failure = DialFailure(DialFailureCause.ENDPOINT, TOO_LONG_TEXT)
            self.event_log.warning(
                "dial refused", address=address[:40], hop=CALLER_TO_SERVER, reason=TOO_LONG_TEXT
            )
        else:
            return self._send_to_agent(Dial(self, front, protocol, address, record))
        self.count_failed(record, failure, CALLER_TO_SERVER, failure.text)
        front.refused(failure)
        return None

    def _send_to_agent(self, dial: Dial) -> Dial | DirectDial | None:
        choice = select_backend(
            dial.address, self.agent_registry, self.strategies, self._rng, self.direct_cidrs, dial.lost
        )
        if isinstance(choice, NoBackend):
            if self._start_timer is not None and not dial.lost:
                self.early_dials[dial] = None
                return dial
            cause = DialFailureCause.AGENT_LOST if dial.lost else DialFailureCause.NO_AGENT
            text = AGENT_LOST_TEXT if dial.lost else choice.reason
            self.refuse(dial, DialFailure(cause, text), choice.detail)
            return None
        if isinstance(choice, DirectBackend):
            return self._dial_directly(dial)
        dial.agent = choice.stream
        dial.record.try_agent(dial.agent.agent_id, str(choice.strategy))
        dial.agent.dials[dial.id] = dial
        dial.agent.send(p.DialRequest(dial.protocol, dial.address, dial.id))
        return dial

    def _dial_directly(self, dial: Dial) -> DirectDial:
        dial.timer.cancel()
        dial.record.try_directly(str(Strategy.DIRECT))
        direct = DirectDial(self, dial.front, dial.address, dial.record)
        self.direct_dials.add(direct)
        direct.pending = self._dialler.dial(dial.protocol, dial.address, direct)
        return direct

    def _retry_early_dials(self) -> None:
        early, self.early_dials = self.early_dials, {}
        for dial in early:
            self._send_again(dial)

    def _stop_holding_dials(self) -> None:
        """The time to wait for a first agent is over, or this server stops."""
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        self._retry_early_dials()

    def refuse(self, dial: Dial, failure: DialFailure, detail: str = "") -> None:
        dial.timer.cancel()
        hop, reason = _HOPS[failure.cause], detail or failure.text
        if dial.agent is not None:
            dial.agent.dials_failed += 1
        self.event_log.warning(
            "dial refused",
            address=dial.address,
            hop=hop,
            agent=dial.agent.agent_id if dial.agent else "",
            reason=reason,
        )
        self.count_failed(dial.record, failure, hop, reason)
        dial.front.refused(failure)

    def count_failed(self, record: DialRecord, failure: DialFailure, hop: str, reason: str) -> None:
        self.metrics.dial_failure_count.labels(failure.cause.value).value += 1
        self.dial_history.failed(record, self.timers.now(), _OUTCOMES[failure.cause], hop, reason)

    def count_cancelled(self, record: DialRecord) -> None:
        """The caller has left before the dial was answered, or this server stops."""
        self.metrics.dial_failure_count.labels("frontend_close").value += 1
        record.closed_by = BY_SERVER if self.closing else BY_CALLER
        reason = STOPPING_TEXT if self.closing else "cancelled by the caller"
        self.dial_history.failed(record, self.timers.now(), CANCELLED, "", reason)

    def on_dial_response(self, agent: AgentStream, response: p.DialResponse) -> None:
        dial = agent.dials.pop(response.random, None)
        if dial is None:
            self.metrics.dial_failure_count.labels("unrecognized_response").value += 1
            if response.connect_id:
                agent.send(p.CloseRequest(response.connect_id))
        elif response.error or not response.connect_id:
            self.refuse(
                dial,
                DialFailure(DialFailureCause.ENDPOINT, response.error or "DIAL_RSP without a connection id"),
            )
        else:
            dial.timer.cancel()
            self._establish(dial, agent, response.connect_id)

    def _establish(self, dial: Dial, agent: AgentStream, connect_id: int) -> None:
        reused = agent.routes.get(connect_id)
        if reused is not None:
            reused.on_agent_lost("connection id reused by the agent")
        now = self.timers.now()
        self.metrics.dial_duration_seconds.observe(now - dial.started_at)
        self.dial_history.established(dial.record, now)
        agent.dials_succeeded += 1
        route = AgentRoute(self, dial.front, agent, connect_id, dial.record)
        agent.add_route(route)
        dial.front.established(route, connect_id)

    def on_dial_cancelled_by_agent(self, agent: AgentStream, dial_id: int) -> None:
        dial = agent.dials.pop(dial_id, None)
        if dial is not None:
            self.refuse(dial, DialFailure(DialFailureCause.AGENT_LOST, "dial cancelled by the agent"))

    def _on_dial_agent_lost(self, dial: Dial, agent: AgentStream) -> None:
        """Retries once with another agent: no byte of this connection was sent yet."""
        if dial.lost or self.stopping:
            self.refuse(dial, DialFailure(DialFailureCause.AGENT_LOST, AGENT_LOST_TEXT))
            return
        dial.lost.append(agent)
        self.metrics.dial_retries_total.value += 1
        self._send_again(dial)

    def _send_again(self, dial: Dial) -> None:
        again = self._send_to_agent(dial)
        if isinstance(again, DirectDial):
            dial.front.dial_moved(again)

    # --- routes

    def route_closed(self, route: AgentRoute | DirectRoute, reason: str, by: str) -> None:
        now = self.timers.now()
        self.dial_history.closed(route.record, now, by, reason)
        if isinstance(route, DirectRoute):
            self.direct_routes.discard(route)
            self.dial_history.ended(route.record, route.bytes_up, route.bytes_down)
        self.metrics.connection_duration_seconds.observe(now - route.opened_at)
        self.metrics.closed_connections_total.labels(_short(reason)).value += 1
        self.event_log.debug("connection closed", reason=reason)

    # --- lifecycle and views

    @property
    def ready(self) -> bool:
        return not self.stopping and ready(self.agent_registry, self.strategies)

    @property
    def route_count(self) -> int:
        return len(self.direct_routes) + sum(
            not route.closing for agent in self.agent_registry for route in agent.routes.values()
        )

    @property
    def dial_count(self) -> int:
        with_agents = sum(len(agent.dials) for agent in self.agent_registry)
        return len(self.early_dials) + len(self.direct_dials) + with_agents

    @property
    def idle(self) -> bool:
        """Whether a graceful stop has nothing to wait for."""
        return not (
            self.dial_count
            or self.direct_routes
            or any(agent.routes for agent in self.agent_registry)
            or any(front.has_unsent for front in self.grpc_frontends)
        )

    def stop_accepting(self) -> None:
        """Refuses new dials; established connections continue. Sends GOAWAY to our own agents, which then
        look for another server. A Go agent would close its established connections on GOAWAY."""
        self.stopping = True
        self._stop_holding_dials()
        for agent in self.agent_registry:
            if agent.extension:
                agent.stream.connection.go_away()

    def close(self) -> None:
        """Closes everything at once."""
        self.stopping = self.closing = True
        self._stop_holding_dials()
        for front in list(self.connect_frontends):
            front.stop(STOPPING_TEXT)
        # Before the gRPC callers: agents must see a loss, not a close behind an incomplete upload.
        for agent in self.agent_registry:
            agent.fail(grpc.UNAVAILABLE, STOPPING_TEXT)
        for route in list(self.direct_routes):
            route.stop(STOPPING_TEXT)

    def count_stream_error(self, segment: str, status: int) -> None:
        code = grpc.STATUS_NAMES[status] if 0 <= status < len(grpc.STATUS_NAMES) else "Unknown"
        self.metrics.stream_errors_total.labels(segment, code, "Unknown").value += 1

    def overlapping_identifiers(self) -> list[dict[str, str]]:
        """Returns what two agents advertise both."""
        return self._admission.overlaps()

    def _mirror_tables(self) -> None:
        """Makes gauges read the tables when they are scraped, so that both always agree."""
        m = self.metrics
        m.grpc_connections.labels("Proxy").set_function(lambda: len(self.grpc_frontends))
        m.grpc_connections.labels("Connect").set_function(
            lambda: len(self.agent_registry) + len(self._agents_waiting)
        )
        m.http_connections.set_function(lambda: len(self.connect_frontends))
        m.pending_backend_dials.set_function(lambda: self.dial_count)
        m.established_connections.set_function(lambda: self.route_count)
        m.ready_backend_connections.set_function(lambda: len(self.agent_registry))
        for strategy in self.strategies:
            m.ready_backends.labels(str(strategy)).set_function(
                partial(self.agent_registry.ready_count, strategy)
            )
        m.queued_bytes.labels("to_agent").set_function(
            lambda: sum(agent.queued_up for agent in self.agent_registry)
        )
        m.queued_bytes.labels("to_frontend").set_function(
            lambda: sum(agent.queued_down for agent in self.agent_registry)
        )
        m.stalled_connections.labels("to_agent").set_function(
            lambda: sum(agent.stalled_up for agent in self.agent_registry)
        )
        m.stalled_connections.labels("to_frontend").set_function(
            lambda: sum(agent.stalled_receivers() for agent in self.agent_registry)
        )
        m.full_receive_channels.labels("Connect").set_function(
            lambda: sum(agent.stream.paused for agent in self.agent_registry)
        )
        m.full_receive_channels.labels("Proxy").set_function(
            lambda: sum(front.stream.paused for front in self.grpc_frontends)
        )


CALLER_TO_SERVER: Final = "caller to server"
_HOPS: Final = {
    DialFailureCause.NO_AGENT: "server: no agent",
    DialFailureCause.ENDPOINT: "agent to endpoint",
    DialFailureCause.AGENT_LOST: "server to agent",
    DialFailureCause.TIMEOUT: "agent did not answer",
}
_OUTCOMES: Final[dict[DialFailureCause, str]] = {
    DialFailureCause.NO_AGENT: NO_AGENT,
    DialFailureCause.ENDPOINT: REFUSED,
    DialFailureCause.AGENT_LOST: AGENT_LOST,
    DialFailureCause.TIMEOUT: TIMED_OUT,
}


def _nothing() -> None:
    return None


def _short(reason: str) -> str:
    """Returns the reason without its details: metric labels must be few."""
    return reason.partition(":")[0]


def _counters(
    metrics: ServerMetrics, segment_in: str, segment_out: str, bytes_in: str | None, bytes_out: str
) -> StreamCounters:
    packets: Family[Counter] = metrics.stream_packets_total
    transferred = metrics.transferred_bytes_total
    return StreamCounters(
        packets_in={kind: packets.labels(segment_in, name) for kind, name in p.TYPE_NAMES.items()},
        packets_out={kind: packets.labels(segment_out, name) for kind, name in p.TYPE_NAMES.items()},
        # Bytes are counted once, on the agents' side.
        bytes_in=transferred.labels(bytes_in) if bytes_in else Counter(),
        bytes_out=transferred.labels(bytes_out) if bytes_in else Counter(),
        stalled_seconds=metrics.stalled_seconds_total.labels(bytes_out),
    )
