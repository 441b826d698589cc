"""Checks the promises of ARCHITECTURE.md on tables, packets and counters of the cores."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from bootbridge.common.field_names import camel_case
from bootbridge.metrics import Gauge
from bootbridge.proxy_agent.status_document import core_status as agent_status
from bootbridge.proxy_server.status_document import core_status as server_status
from bootbridge.runtime.sliced_work import run_at_once
from bootbridge.runtime.status_query import ROWS_MAX, StatusQuery
from bootbridge.tunnel.agent_core import ServerStream
from bootbridge.tunnel.agent_stream import AgentStream
from bootbridge.tunnel.dial import Dial, DirectDial
from bootbridge.tunnel.dial_record import DialRecord
from bootbridge.tunnel.frontend import ConnectFrontend, GrpcFrontend
from bootbridge.tunnel.packet_stream import PacketStream
from bootbridge.tunnel.proxy_core import ProxyCore
from bootbridge.tunnel.route import AgentRoute
from bootbridge.tunnel.server_metrics import DIRECTIONS
from bootbridge.wire import packets as p
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_stream import Stream, StreamHandler
from tests.sim.limits import SmallLimits
from tests.support.sim_environment import Violation

if TYPE_CHECKING:
    from tests.sim.processes import AgentProcess, ServerProcess
    from tests.sim.scenario import Scenario

STALL_SECONDS = 3.0
ALL_ROWS = StatusQuery(agents_limit=ROWS_MAX, connections_limit=ROWS_MAX)
_FAILURES = ("no_agent", "error_response", "backend_close", "backend_dial_timeout", "frontend_close")
_OUTCOMES = ("no agent", "refused", "agent lost", "timed out", "cancelled")  # the same, in records
# Answers for unknown connections do not belong to a connection.
_STRAY = ("Unknown connectID", "unrecognized connectID")


class EndedDials:
    """The records that one server has ended: each exactly once, and complete."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.outcomes: Counter[str] = Counter()
        self.bytes_up = 0  # through agents
        self.bytes_down = 0

    def add(self, record: DialRecord) -> None:
        if record.id in self.ids or not record.outcome:
            raise Violation(8, f"{record} ended twice, or without an outcome")
        if record.established != bool(record.close_reason) or (record.established and not record.closed_by):
            raise Violation(8, f"{record} does not say who closed it")
        self.ids.add(record.id)
        self.outcomes[record.outcome] += 1
        if record.agent:
            self.bytes_up += record.bytes_up
            self.bytes_down += record.bytes_down


class Checks:
    def __init__(self, scenario: Scenario, limits: SmallLimits) -> None:
        self._scenario = scenario
        self._limits = limits
        self._dials_started: dict[ProxyCore, int] = {}
        self._dials_ended: dict[ProxyCore, EndedDials] = {}

    @property
    def _read_max(self) -> int:
        return self._scenario.network.conditions.read_max

    # --- taps

    def watch_server(self, server: ServerProcess) -> None:
        core = server.core
        self._dials_started[core] = 0
        ended = self._dials_ended[core] = EndedDials()
        core.dial_history.on_ended = ended.add
        start, send, request = core.dial, core._send_to_agent, core.on_agent_request
        tries: dict[Dial, int] = {}

        def dial(front: object, protocol: str, address: str) -> Dial | DirectDial | None:
            self._dials_started[core] += 1
            exchange = self._scenario.exchange_at(address)
            if exchange is not None:
                server.exchanges[exchange] = None
            return start(front, protocol, address)  # type: ignore[arg-type]

        def send_to_agent(dial: Dial) -> Dial | DirectDial | None:
            sent = send(dial)
            if dial in core.early_dials:
                return sent  # tried when an agent connects
            tries[dial] = tries.get(dial, 0) + 1
            if tries[dial] > 2:
                raise Violation(6, f"{dial} was tried {tries[dial]} times")
            if isinstance(sent, Dial):
                self._check_choice(core, sent)
            return sent

        def on_agent_request(stream: Stream, headers: Headers) -> StreamHandler:
            handler = request(stream, headers)
            if isinstance(handler, AgentStream) and not handler.agent_id.startswith("adversary"):
                _tap_server_side(handler)
            return handler

        core.dial = dial  # type: ignore[method-assign]
        core._send_to_agent = send_to_agent  # type: ignore[method-assign]
        core.on_agent_request = on_agent_request  # type: ignore[method-assign]

    def _check_choice(self, core: ProxyCore, dial: Dial) -> None:
        agent = dial.agent
        assert agent is not None
        exchange = self._scenario.exchange_at(dial.address)
        if exchange is not None and agent.agent_id.startswith("adversary"):
            exchange.excuses.add("adversary")
        if agent in dial.lost:
            raise Violation(6, f"{dial} was sent again to the agent that failed it")
        spared = agent.draining or agent.silent
        if spared and any(not (a.draining or a.silent or a in dial.lost) for a in core.agent_registry):
            raise Violation(
                6, f"{dial} was sent to a draining or silent agent although another was available"
            )

    def watch_agent_side(self, stream: ServerStream) -> None:
        """Checks that a server sends nothing more for a connection that it closed."""
        closed: set[int] = set()
        handle = stream.on_packet

        def on_packet(packet: p.Packet) -> None:
            match packet:
                case p.CloseRequest(connect_id) | p.Reset(connect_id):
                    closed.add(connect_id)
                case p.Data(connect_id) | p.Credit(connect_id) | p.End(connect_id):
                    if connect_id in closed:
                        raise Violation(5, f"{packet} followed CLOSE_REQ")
                case p.DialRequest(_, address, _):
                    exchange = self._scenario.exchange_at(address)
                    if exchange is not None:
                        exchange.dialled += 1
            handle(packet)

        stream.on_packet = on_packet  # type: ignore[method-assign]

    # --- tables, after every few steps

    def check(self) -> None:
        for server in self._scenario.servers:
            if server.alive and server.pump.settled:
                self._check_server(server)
        for agent in self._scenario.agents:
            if agent.alive and agent.pump.settled:
                self._check_agent(agent)

    def _check_server(self, server: ServerProcess) -> None:
        core = server.core
        routes, dials, queued_up, queued_down = 0, 0, 0, 0
        for agent in core.agent_registry:
            if agent.ended:
                raise Violation(7, f"{agent} has ended but is in the agent registry")
            if agent.routes.keys() != agent.receivers.keys():
                raise Violation(7, f"{agent}: routes {agent.routes} but receivers {agent.receivers}")
            for dial in agent.dials.values():
                dials += 1
                self._check_dial(core, agent, dial)
            for route in agent.routes.values():
                routes += not route.closing
                queued_up += route.send_queue.backlog
                queued_down += route.receiver.sink.backlog
                self._check_route(agent, route)
            self._check_stream(agent)
        self._check_fronts(core)
        routes += len(core.direct_routes)
        dials += len(core.direct_dials) + len(core.early_dials)
        for dial in core.early_dials:
            self._check_deadline(core, dial)
        self._check_gauges(server, routes, dials, queued_up, queued_down)
        self._check_counters(server, routes, dials)
        self._check_records(server, dials)
        for transport in server.transports:
            if transport.http2.out_size > self._limits.http2_output_max:
                raise Violation(4, f"{transport.http2.out_size} bytes wait in a connection of {server.name}")

    def _check_dial(self, core: ProxyCore, agent: AgentStream, dial: Dial) -> None:
        if dial.agent is not agent:
            raise Violation(3, f"{dial} is in the table of {agent}")
        self._check_deadline(core, dial)

    def _check_deadline(self, core: ProxyCore, dial: Dial) -> None:
        if dial.timer.cancelled or dial.timer.when < core.timers.now():
            raise Violation(3, f"{dial} is pending without a deadline")

    def _check_route(self, agent: AgentStream, route: AgentRoute) -> None:
        limits = self._limits
        if route.agent is not agent:
            raise Violation(2, f"{route} is in the table of {agent}")
        up_max = limits.send_queue_max(self._read_max, grpc_source=isinstance(route.front, GrpcFrontend))
        if route.send_queue.backlog > up_max:
            raise Violation(4, f"{route} holds {route.send_queue.backlog} bytes of upload")
        down_max = self._receiver_max(agent, honest=not agent.agent_id.startswith("adversary"))
        if route.receiver.sink.backlog > down_max:
            raise Violation(4, f"{route} holds {route.receiver.sink.backlog} bytes of download")

    def _receiver_max(self, stream: PacketStream, *, honest: bool) -> int:
        if not stream.extension:
            return self._limits.guarded_max
        if honest:
            return self._limits.credited_max(self._read_max)
        return self._limits.receiver_max

    def _check_stream(self, stream: PacketStream) -> None:
        if stream.guard is not None:
            for receiver, watched in stream.guard._watched.items():
                if stream.timers.now() - watched.moved_at > STALL_SECONDS + 1.0:
                    raise Violation(4, f"{receiver.owner} is stalled and still not closed")
        if len(stream._urgent) > self._limits.control_max(self._read_max):
            raise Violation(4, f"{len(stream._urgent)} control packets wait in {stream}")

    def _check_fronts(self, core: ProxyCore) -> None:
        fronts: list[ConnectFrontend | GrpcFrontend] = [*core.connect_frontends, *core.grpc_frontends]
        for caller in core.grpc_frontends:
            self._check_stream(caller)
        for front in fronts:
            dialling, route = front._dial, front._route
            if isinstance(dialling, Dial):
                agent = dialling.agent
                if agent is None:
                    if dialling not in core.early_dials:
                        raise Violation(3, f"{front} waits for {dialling}, which is not in any table")
                elif agent not in core.agent_registry or agent.dials.get(dialling.id) is not dialling:
                    raise Violation(3, f"{front} waits for {dialling}, which is not in any table")
            elif isinstance(dialling, DirectDial) and dialling not in core.direct_dials:
                raise Violation(3, f"{front} waits for {dialling}, which is not in any table")
            if isinstance(route, AgentRoute):
                if (
                    route.agent.routes.get(route.connect_id) is not route
                    or route.agent not in core.agent_registry
                ):
                    raise Violation(2, f"{front} uses {route}, which is in no table")
                if route.closing:
                    raise Violation(5, f"{front} uses {route} after its close")
            elif route is not None and route not in core.direct_routes:
                raise Violation(2, f"{front} uses {route}, which is in no table")

    def _check_gauges(
        self, server: ServerProcess, routes: int, dials: int, queued_up: int, queued_down: int
    ) -> None:
        core, m = server.core, server.metrics
        shown = {
            "established": _value(m.established_connections),
            "pending": _value(m.pending_backend_dials),
            "http": _value(m.http_connections),
            "proxy": _value(m.grpc_connections.labels("Proxy")),
            "backends": _value(m.ready_backend_connections),
            "queuedUp": _value(m.queued_bytes.labels("to_agent")),
            "queuedDown": _value(m.queued_bytes.labels("to_frontend")),
        }
        counted = {
            "established": routes,
            "pending": dials,
            "http": len(core.connect_frontends),
            "proxy": len(core.grpc_frontends),
            "backends": len(core.agent_registry),
            "queuedUp": queued_up,
            "queuedDown": queued_down,
        }
        if shown != counted:
            raise Violation(8, f"{server.name}: metrics say {shown}, tables say {counted}")
        self._check_status(server, routes, dials, queued_up, queued_down)

    def _check_status(
        self, server: ServerProcess, routes: int, dials: int, queued_up: int, queued_down: int
    ) -> None:
        core, m = server.core, server.metrics
        status: dict[str, Any] = run_at_once(server_status(core, ALL_ROWS))
        rows, agents = status["connections"], status["agents"]
        through_agents = [row for row in rows if row["agent"] and row["state"] != "dialling"]
        shown = {
            "routes": status["routes"],
            "pending": status["pendingDials"],
            "rows open": sum(row["state"] not in ("dialling", "closing") for row in rows),
            "rows pending": sum(row["state"] == "dialling" for row in rows),
            "rows of all": len(rows),
            "queued up": sum(row["queuedUp"] for row in through_agents),
            "queued of agents": sum(agent["queuedBytes"] for agent in agents),
            "queued down": sum(row["queuedDown"] for row in through_agents),
            "agents": len(agents),
            "bytes": status["bytes"],
            "dials": status["dials"]["succeeded"],
        }
        counted = {
            "routes": routes,
            "pending": dials,
            "rows open": routes,
            "rows pending": dials,
            "rows of all": status["connectionsTotal"],
            "queued up": queued_up,
            "queued of agents": queued_up,
            "queued down": queued_down,
            "agents": status["agentsTotal"],
            "bytes": {camel_case(name): m.transferred_bytes_total.labels(name).value for name in DIRECTIONS},
            "dials": m.dial_duration_seconds.count,
        }
        if shown != counted:
            raise Violation(8, f"{server.name}: status says {shown}, tables say {counted}")

    def _check_counters(self, server: ServerProcess, routes: int, dials: int) -> None:
        """Every dial and every connection that began has ended, or is in a table."""
        m = server.metrics
        failed = sum(m.dial_failure_count.labels(why).value for why in _FAILURES)
        made = m.dial_duration_seconds.count
        began = self._dials_started[server.core]
        if began != made + failed + dials:
            text = f"{began} dials began, {made} made, {failed} failed, {dials} pending"
            raise Violation(8, f"{server.name}: {text}")
        if made != m.connection_duration_seconds.count + routes:
            text = f"{made} connections began, {m.connection_duration_seconds.count} ended, {routes} are open"
            raise Violation(8, f"{server.name}: {text}")

    def _check_records(self, server: ServerProcess, dials: int) -> None:
        """Every dial has one record, and records and open connections add up to the counters."""
        core, m, ended = server.core, server.metrics, self._dials_ended[server.core]
        routes = [route for agent in core.agent_registry for route in agent.routes.values()]
        began, pending = self._dials_started[core], dials + len(routes) + len(core.direct_routes)
        if began != len(ended.ids) + pending:
            text = f"{began} dials began, {len(ended.ids)} records ended, {pending} are open"
            raise Violation(8, f"{server.name}: {text}")
        failed = [ended.outcomes[outcome] for outcome in _OUTCOMES]
        counted = [m.dial_failure_count.labels(why).value for why in _FAILURES]
        if failed != counted:
            raise Violation(8, f"{server.name}: records say {ended.outcomes}, metrics {counted}")
        shown = (
            ended.bytes_up + sum(route.bytes_up for route in routes),
            ended.bytes_down + sum(route.bytes_down for route in routes),
        )
        transferred = tuple(m.transferred_bytes_total.labels(name).value for name in DIRECTIONS)
        if shown != transferred:
            raise Violation(8, f"{server.name}: records have {shown} bytes, metrics {transferred}")

    def _check_agent(self, agent: AgentProcess) -> None:
        core, limits = agent.core, self._limits
        endpoints = 0
        for stream in core.streams:
            if stream.ended:
                raise Violation(7, f"{agent.name}: {stream} has ended but is in the table")
            if stream.endpoints.keys() != stream.receivers.keys():
                raise Violation(
                    7, f"{agent.name}: endpoints {stream.endpoints} but receivers {stream.receivers}"
                )
            down_max = self._receiver_max(stream, honest=True)
            for endpoint in stream.endpoints.values():
                endpoints += 1
                if endpoint.send_queue.backlog > limits.send_queue_max(self._read_max, grpc_source=False):
                    raise Violation(4, f"{endpoint} holds {endpoint.send_queue.backlog} bytes of download")
                if endpoint.receiver.sink.backlog > down_max:
                    raise Violation(4, f"{endpoint} holds {endpoint.receiver.sink.backlog} bytes of upload")
            self._check_stream(stream)
        shown = (
            _value(agent.metrics.open_server_connections),
            _value(agent.metrics.open_endpoint_connections),
        )
        status: dict[str, Any] = run_at_once(agent_status(core, ALL_ROWS))
        rows = sum(row["state"] != "dialling" for row in status["connections"])
        if shown != (len(core.streams), endpoints) or not status["routes"] == rows == endpoints:
            raise Violation(8, f"{agent.name}: metrics say {shown}, tables {len(core.streams)}, {endpoints}")

    # --- emptiness

    def leftovers(self) -> str:
        """Describes state that is left although every frontend is gone; empty if there is none."""
        for server in self._scenario.servers:
            core = server.core
            if not server.alive:
                continue
            if not core.idle or core.connect_frontends or core.grpc_frontends or core._agents_waiting:
                return f"{server.name}: {run_at_once(server_status(core, ALL_ROWS))}"
            if len(server.pump.timers) != len(server.transports):
                return (
                    f"{server.name}: {len(server.pump.timers)} timers for {len(server.transports)} transports"
                )
            if any(agent.queued_bytes or agent._turns or agent._urgent for agent in core.agent_registry):
                return f"{server.name}: packets are still queued"
        for agent in self._scenario.agents:
            if not agent.alive:
                continue
            if not agent.core.idle:
                return f"{agent.name}: {run_at_once(agent_status(agent.core, ALL_ROWS))}"
            if len(agent.pump.timers) != len(agent.server_connections):
                return f"{agent.name}: {len(agent.pump.timers)} timers, not one per server"
        return self._sockets_left()

    def _sockets_left(self) -> str:
        for port in self._scenario.network.ports:
            if port.pump.alive and port.name.startswith(("endpoint", "connect", "grpc")):
                return repr(port)
        return ""


def _value(number: Gauge) -> float:
    return next(iter(number.samples()))[2]


def _tap_server_side(stream: AgentStream) -> None:
    """Checks that an honest agent sends nothing more for a connection that it closed."""
    closed: set[int] = set()
    handle = stream.on_packet

    def on_packet(packet: p.Packet) -> None:
        match packet:
            case p.CloseResponse(error, connect_id) if error not in _STRAY:
                closed.add(connect_id)
            case p.Data(connect_id) | p.Credit(connect_id) | p.End(connect_id):
                if connect_id in closed:
                    raise Violation(5, f"{packet} followed CLOSE_RSP")
            case _:
                pass
        handle(packet)

    stream.on_packet = on_packet  # type: ignore[method-assign]
