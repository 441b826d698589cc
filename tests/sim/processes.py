"""Servers and agents: the production cores on simulated sockets, as processes that can be killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_network
from random import Random
from typing import TYPE_CHECKING

from bootbridge.metrics import Registry
from bootbridge.ports.byte_ports import DialResult
from bootbridge.runtime.connection_limits import ConnectionLimits
from bootbridge.runtime.http2_transport import Http2Transport
from bootbridge.tunnel.agent_core import AgentCore, ServerStream
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.frontend import ConnectFrontend
from bootbridge.tunnel.proxy_core import Limits, ProxyCore
from bootbridge.tunnel.server_metrics import ServerMetrics
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream, StreamHandler
from tests.sim.checks import STALL_SECONDS
from tests.sim.exchange import EndpointApp, Exchange
from tests.support.sim_environment import Environment, SimPump
from tests.support.sim_network import Network, SimPort, http2_transport

if TYPE_CHECKING:
    from tests.sim.scenario import Scenario

KEEPALIVE_SECONDS = 10.0
GREETING_SECONDS_MAX = 30.0
DIAL_TIMEOUT_SECONDS = 5.0
UNADMITTED_MAX = 16


class QuietEventLog:
    """Drops events, unless the run is traced."""

    def __init__(self, env: Environment, who: str) -> None:
        self._env = env
        self._who = who

    def info(self, message: str, **fields: object) -> None:
        if self._env.tracing:
            print(f"{self._env.now:12.6f} {'':6} {self._who}: {message} {fields}")

    warning = debug = info


class SimDial:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimDialler:
    """Dials the endpoint of the exchange whose address it is given."""

    def __init__(self, scenario: Scenario, pump: SimPump, owner: ServerProcess | AgentProcess) -> None:
        self._scenario = scenario
        self._pump = pump
        self._owner = owner

    def dial(self, protocol: str, address: str, result: DialResult) -> SimDial:
        dial = SimDial()
        exchange = self._scenario.exchange_at(address)
        env = self._scenario.env
        kind = exchange.plan.kind if exchange is not None else "refuse"
        delay = env.between(0.0005, 0.02) if env.chance(0.8) else env.between(0.01, 0.5)

        def answer() -> None:
            if dial.cancelled:
                return
            if kind == "refuse":
                result.on_dial_failed("dial tcp: connection refused", False)
            elif kind == "timeout":
                result.on_dial_failed("dial tcp: i/o timeout", True)
            else:
                assert exchange is not None
                self._connect(exchange, result)

        if kind == "silent" and self._owner.kind == "server":
            kind = "timeout"  # a dialler has a time limit; an agent may still not answer
        if kind == "timeout":
            delay = DIAL_TIMEOUT_SECONDS
        if kind != "silent":
            self._pump.soon(delay, answer)
        return dial

    def _connect(self, exchange: Exchange, result: DialResult) -> None:
        scenario = self._scenario
        near, far = scenario.network.join(self._pump, scenario.outside, f"endpoint{exchange.id}")
        app = EndpointApp(scenario.env, exchange, far, half_close_supported=self._owner.supports_half_close)
        self._owner.apps[app] = None
        near.start(result.on_dialled(near))
        scenario.outside.soon(scenario.network.delay(), app.begin)


class Process:
    """A simulated process that can crash; its replacement is a new object."""

    supports_half_close = True

    def __init__(self, scenario: Scenario, name: str) -> None:
        self.scenario = scenario
        self.env = scenario.env
        self.name = name
        self.pump = SimPump(scenario.env)
        self.apps: dict[EndpointApp, None] = {}

    @property
    def network(self) -> Network:
        return self.scenario.network

    @property
    def alive(self) -> bool:
        return self.pump.alive

    def ports(self) -> list[SimPort]:
        return [port for port in self.network.ports if port.pump is self.pump]

    def crash(self, silently: bool) -> None:
        """SIGKILL, or with ``silently`` a power loss, after which the peers receive no FIN or reset."""
        self.env.trace(f"{self.name} crashes{' silently' if silently else ''}")
        self.pump.alive = False
        for app in self.apps:
            app.exchange.excuses.add(f"{self.kind} crashed")
        for port in self.ports():
            if silently:
                port.vanish()
            else:
                port.die()

    kind = "process"


class ServerProcess(Process):
    kind = "server"

    def __init__(self, scenario: Scenario, index: int) -> None:
        super().__init__(scenario, f"server{index}")
        self.index = index
        self.registry = Registry()
        self.metrics = ServerMetrics(self.registry)
        self.transports: dict[Http2Transport, None] = {}
        self._agent_transports: dict[SimPort, Http2Transport] = {}
        self.evicted: set[SimPort] = set()
        self.unadmitted: ConnectionLimits[SimPort] = ConnectionLimits(
            UNADMITTED_MAX, UNADMITTED_MAX // 2, self.env.clock
        )
        self.exchanges: dict[Exchange, None] = {}
        strategies = [Strategy.DEFAULT]
        if scenario.options.direct:
            strategies.insert(0, Strategy.DIRECT)
        self.core = ProxyCore(
            strategies=strategies,
            direct_cidrs=[ip_network("192.0.0.0/16")],
            server_id=f"{self.name}-{scenario.env.count(0, 10**9)}",
            server_count=lambda: scenario.options.servers,
            limits=Limits(
                dial_seconds=scenario.options.dial_seconds,
                stall_seconds=STALL_SECONDS,
                first_agent_seconds=scenario.options.first_agent_seconds,
            ),
            timers=self.pump.timers,
            wall_clock=self.env.clock,
            rng=Random(scenario.env.count(0, 1 << 60)),
            metrics=self.metrics,
            event_log=QuietEventLog(scenario.env, self.name),
            dialler=SimDialler(scenario, self.pump, self),
        )

    def accept_agent(self, port: SimPort, source: str) -> None:
        """As ``proxy_server.agent_port.AgentPort`` does it."""
        transport = http2_transport(
            port, on_request=self.core.on_agent_request, keepalive_seconds=KEEPALIVE_SECONDS, agent_port=True
        )

        def count(changed: Http2Transport) -> None:
            if changed.http2.admitted:
                self.unadmitted.remove(source, port)
            else:
                self._count(source, port)

        def on_closed(closed: Http2Transport) -> None:
            self.transports.pop(closed, None)
            self.unadmitted.remove(source, port)

        transport.on_admitted_change = count
        self.transports[transport] = None
        transport.on_closed = on_closed
        self._agent_transports[port] = transport
        self._count(source, port)
        self.pump.end_turn()

    def _count(self, source: str, port: SimPort) -> None:
        evicted = self.unadmitted.add(source, port)
        if evicted is not None:
            self.evicted.add(evicted)
            self._agent_transports[evicted].close("too many connections")
            evicted.abort()

    def accept_grpc(self, port: SimPort) -> None:
        self._add(port, self.core.on_proxy_request, 3600.0)

    def accept_connect(self, port: SimPort) -> None:
        port.start(ConnectFrontend(self.core, port))

    def _add(
        self, port: SimPort, on_request: Callable[[Stream, Headers], StreamHandler], keepalive: float
    ) -> None:
        transport = http2_transport(port, on_request=on_request, keepalive_seconds=keepalive)
        self.transports[transport] = None
        transport.on_closed = lambda over: self.transports.pop(over, None) and None
        self.pump.end_turn()

    def crash(self, silently: bool) -> None:
        for exchange in self.exchanges:
            exchange.excuses.add("server crashed")
        super().crash(silently)

    def stop(self) -> None:
        """As ``proxy_server.main.ProxyServer.close`` does it."""
        self.env.trace(f"{self.name} stops")
        for exchange in self.exchanges:
            exchange.excuses.add("server stopped")
        self.core.stop_accepting()
        self.core.close()
        for transport in list(self.transports):
            transport.http2.go_away()
            self.pump.end_turn()
            transport.close("the server stopped")
        self.pump.end_turn()


class GoLikeAgentCore(AgentCore):
    """An agent that does not offer the extension, like the original."""

    def connect(
        self,
        connection: Http2Connection,
        authority: str,
        token: str | None,
        on_answer: Callable[[ServerStream], None],
    ) -> ServerStream:
        metadata = [("agentid", self.agent_id), ("agentidentifiers", self.identifiers)]
        headers = grpc.request_headers("/AgentService/Connect", authority, metadata)
        return connection.open_stream(headers, lambda stream: ServerStream(self, stream, on_answer))


@dataclass(eq=False)
class ServerConnection:
    """An agent's connection to one server, from the dial to its end."""

    server: int
    transport: Http2Transport
    stream: ServerStream | None = None
    port: SimPort = field(kw_only=True)


class AgentProcess(Process):
    kind = "agent"

    def __init__(self, scenario: Scenario, index: int, agent_id: str, *, go_like: bool) -> None:
        super().__init__(scenario, f"agent{index}")
        self.index = index
        self.agent_id = agent_id
        self.go_like = go_like
        self.supports_half_close = not go_like
        self.draining = False
        self.server_connections: dict[ServerConnection, None] = {}
        self.registry = Registry()
        self.metrics = AgentMetrics(self.registry)
        self.core = (GoLikeAgentCore if go_like else AgentCore)(
            agent_id=agent_id,
            identifiers="",
            stall_seconds=STALL_SECONDS,
            timers=self.pump.timers,
            wall_clock=self.env.clock,
            metrics=self.metrics,
            event_log=QuietEventLog(scenario.env, self.name),
            dialler=SimDialler(scenario, self.pump, self),
        )

    def connect(self, server_index: int) -> None:
        """Dials a server, and retries until there is a connection to it."""
        if self.scenario.quiet_down:
            return
        server = self.scenario.servers[server_index]
        if not server.alive or server.core.stopping or self.scenario.partitioned(self, server):
            self._connect_later(server_index)
            return
        near, far = self.network.join(self.pump, server.pump, f"{self.name}-{server.name}")
        self.scenario.outside.soon(
            self.network.delay(), lambda: server.accept_agent(far, self.name) if server.alive else None
        )
        transport = http2_transport(near, client=True, keepalive_seconds=KEEPALIVE_SECONDS)
        server_connection = ServerConnection(server_index, transport, port=near)
        self.server_connections[server_connection] = None
        on_answer = partial(self._on_answer, server_connection)
        server_connection.stream = self.core.connect(transport.http2, "server", None, on_answer)
        self.pump.soon(GREETING_SECONDS_MAX, lambda: self._check_greeting(server_connection))
        self.pump.end_turn()

    def _check_greeting(self, server_connection: ServerConnection) -> None:
        if (
            server_connection in self.server_connections
            and server_connection.stream is not None
            and not server_connection.stream.connected
        ):
            self._ended(server_connection)

    def _on_answer(self, server_connection: ServerConnection, stream: ServerStream) -> None:
        if not stream.connected or stream.ended:
            self._ended(server_connection)
            return
        stream.on_ended = lambda ended: self._ended(server_connection)
        self.scenario.checks.watch_agent_side(stream)
        if self.draining:
            self.core.drain()

    def _ended(self, server_connection: ServerConnection) -> None:
        server_connection.transport.close("ended")
        if self.server_connections.pop(server_connection, 0) is None:
            self._connect_later(server_connection.server)

    def _connect_later(self, server_index: int) -> None:
        self.pump.soon(self.env.between(0.1, 2.0), lambda: self._connect_if_needed(server_index))

    def _connect_if_needed(self, server_index: int) -> None:
        if not any(server_connection.server == server_index for server_connection in self.server_connections):
            self.connect(server_index)

    def drain(self) -> None:
        self.env.trace(f"{self.name} drains")
        self.draining = True
        self.core.drain()
        self.pump.end_turn()
