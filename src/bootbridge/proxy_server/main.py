"""The proxy-server process: listeners, the core, health and admin ports, graceful shutdown."""

from __future__ import annotations

import random
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from bootbridge.metrics import Registry
from bootbridge.proxy_server.agent_certificate import AgentCertificate
from bootbridge.proxy_server.agent_port import AgentPort
from bootbridge.proxy_server.options import ServerOptions
from bootbridge.runtime import event_loop, logs, proxy_process
from bootbridge.runtime.accept_rate import AcceptRate
from bootbridge.runtime.admin_http import Route
from bootbridge.runtime.admin_routes import server_admin_routes, server_health_routes, status_routes
from bootbridge.runtime.byte_stream import PlainStream, set_user_timeout
from bootbridge.runtime.destination_policy import DestinationPolicy
from bootbridge.runtime.dialler import TcpDialler
from bootbridge.runtime.event_log import LoggingEventLog
from bootbridge.runtime.http2_transport import Http2Transport
from bootbridge.runtime.listeners import Listener, tcp_socket, unix_socket
from bootbridge.runtime.process_metrics import register_process_metrics
from bootbridge.runtime.process_tuning import HeapTrimmer
from bootbridge.runtime.proxy_process import AdminPort, open_admin_ports
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.sliced_work import SlicedWork, Steps
from bootbridge.runtime.tls_files import TlsFiles, TlsPolicy
from bootbridge.runtime.tls_stream import TlsStream
from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.allowed_identifiers import ANY_NAME, AllowedIdentifiers, allowed_by_names
from bootbridge.tunnel.frontend import ConnectFrontend
from bootbridge.tunnel.proxy_core import DIAL_SECONDS_MAX, Authenticator, Limits, ProxyCore
from bootbridge.tunnel.server_metrics import ServerMetrics
from bootbridge.wire.addresses import join_host_port, parse_cidr, peer_address
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_budgets import BudgetExceeded
from bootbridge.wire.http2_stream import Stream, StreamHandler

if TYPE_CHECKING:
    from bootbridge.proxy_server.audit_trail import AuditTrail

# A gRPC frontend may open one per dial.
FRONTEND_STREAMS_MAX: Final = 10_000
# How often a graceful stop checks whether the last connection has ended.
IDLE_CHECK_SECONDS: Final = 0.05
# How often the credentials of admitted agents are checked.
RECHECK_SECONDS: Final = 10.0


def run(options: ServerOptions) -> int:
    return proxy_process.run("server", options, _serve(options))


async def _serve(options: ServerOptions) -> int:
    signals = event_loop.StopSignals()
    async with AsyncExitStack() as stack:
        server = await ProxyServer.start(options, stack)
        await signals.stop_requested()
        stopped = await server.stop_gracefully(signals)
        signals.restore_default_handlers()
    return 0 if stopped else 1


class ProxyServer:
    """Owns listeners, core and connections; closing the stack given to ``start`` closes everything."""

    def __init__(self, options: ServerOptions, authenticate: Authenticator | None) -> None:
        self._options = options
        self._started_at = time.monotonic()
        self.pump = Pump(event_loop.running_loop())
        self.registry = Registry()
        self.metrics = ServerMetrics(self.registry)
        register_process_metrics(self.registry)
        self.metrics.log_lines_dropped_total.set_function(logs.dropped_lines)
        self._event_log = LoggingEventLog("server")
        self.core = ProxyCore(
            strategies=[Strategy(name) for name in options.strategies],
            direct_cidrs=[cidr for cidr in map(parse_cidr, options.direct_cidrs) if cidr],
            server_id=options.server_id,
            server_count=lambda: options.server_count,
            limits=Limits(
                options.backend_dial_timeout or DIAL_SECONDS_MAX,
                options.stall_timeout,
                options.agent_max_age,
                options.first_agent_timeout,
            ),
            timers=self.pump.timers,
            wall_clock=time.time,
            rng=random.Random(),
            metrics=self.metrics,
            event_log=self._event_log,
            dialler=TcpDialler(
                self.pump,
                DestinationPolicy(options.allow_destinations, options.deny_destinations),
                self.metrics.refused_destinations_total,
            ),
            authenticate=authenticate,
            allowed_identifiers=_allow_list(options),
        )
        self._audit_trail: AuditTrail | None = None
        self._transports: set[Http2Transport] = set()
        self._listeners: list[Listener] = []
        policy = TlsPolicy.from_flags(options.tls_min_version, options.cipher_suites)
        self._agent_tls = TlsFiles.agent_listener(
            options.cluster_cert, options.cluster_key, options.cluster_ca_cert, policy=policy
        )
        self._agent_port = AgentPort(
            self.pump,
            self.metrics,
            self._agent_tls,
            options.keepalive_time,
            self._event_log,
            self._agent_requests,
            self._add_transport,
            authenticates=bool(options.cluster_ca_cert) or options.token_authentication,
        )
        self._frontend_tls: TlsFiles | None = None
        if not options.uds_name:
            self._frontend_tls = TlsFiles.frontend_listener(
                options.server_cert,
                options.server_key,
                options.server_ca_cert,
                alpn="h2" if options.mode == "grpc" else "http/1.1",
                policy=policy,
            )
        for tls in filter(None, (self._agent_tls, self._frontend_tls)):
            tls.register_validity(
                self.metrics.tls_certificate_not_before_timestamp_seconds,
                self.metrics.tls_certificate_not_after_timestamp_seconds,
            )

    @classmethod
    async def start(cls, options: ServerOptions, stack: AsyncExitStack) -> ProxyServer:
        authenticate = None
        kubernetes = None
        if options.needs_kubernetes:
            from bootbridge.proxy_server.kubernetes import KubernetesIntegration

            kubernetes = KubernetesIntegration(options)
            stack.push_async_callback(kubernetes.close)
            authenticate = kubernetes.authenticator() if options.token_authentication else None
        proof = None
        if options.agent_identifier_proof == "token":
            from bootbridge.proxy_server.token_proof import TokenProof

            authenticate = proof = TokenProof(options, LoggingEventLog("server"), authenticate)
            stack.push_async_callback(proof.close)
        server = cls(options, authenticate)
        if options.audit_log:
            server._start_audit_trail(stack)
        if proof is not None:
            proof.start(server.pump, server.core.recheck_agents)
        stack.callback(server.close)
        transferred = server.metrics.transferred_bytes_total.labels("to_agent")
        stack.callback(HeapTrimmer(server.pump.loop, lambda: transferred.value).close)
        server._recheck_later()
        server._listen()
        await server._open_admin_ports(stack)
        if kubernetes is not None:
            kubernetes.start(server.pump, server.metrics)
        server._event_log.info(
            "server started",
            agent_port=options.agent_port,
            frontend=options.uds_name or options.server_port,
            mode=options.mode,
            server_id=options.server_id,
        )
        if options.routes_by_identifiers and not options.bounds_identifiers:
            server._event_log.warning(
                "agents may advertise any destination",
                fix="set --agent-identifier-proof, or --agent-cidrs and --agent-hosts",
            )
        return server

    def _start_audit_trail(self, stack: AsyncExitStack) -> None:
        from bootbridge.proxy_server.audit_trail import AuditTrail

        trail = self._audit_trail = AuditTrail(self._options.audit_log, self._options.server_id)
        stack.callback(trail.close)
        self.core.dial_history.on_ended = trail.write
        self.metrics.audit_lines_dropped_total.set_function(lambda: trail.dropped)
        self.pump.loop.add_signal_handler(signal.SIGHUP, trail.reopen)

    # --- listening

    def _listen(self) -> None:
        options = self._options
        agent_socket = tcp_socket(options.agent_bind_address, options.agent_port, "--agent-port")
        rate = AcceptRate(self.pump.timers.now)
        self._listeners.append(Listener(self.pump, agent_socket, self._agent_port.accept, rate=rate))
        if options.uds_name:
            sock = unix_socket(options.uds_name, delete_existing=options.delete_existing_uds_file)
            accept = self._start_frontend_plain
        else:
            sock = tcp_socket(options.server_bind_address, options.server_port, "--server-port")
            accept = self._accept_frontend_tls
        self._listeners.append(Listener(self.pump, sock, accept, path=options.uds_name))

    async def _open_admin_ports(self, stack: AsyncExitStack) -> None:
        options = self._options
        status = status_routes(self._status, self._load_status_page, options.admin_bind_address)
        health = server_health_routes(self.registry, ready=lambda: self.core.ready)
        await open_admin_ports(
            stack,
            admin=AdminPort(
                "--admin-port",
                options.admin_bind_address,
                options.admin_port,
                server_admin_routes(self.registry, status),
            ),
            health=AdminPort("--health-port", options.health_bind_address, options.health_port, health),
            profiling=options.enable_profiling,
        )

    def _load_status_page(self, work: SlicedWork) -> Route:
        from bootbridge.status_page.site import StatusSite

        return StatusSite(self._status, work).answer

    def _status(self, query: Mapping[str, str]) -> Steps[dict[str, object]]:
        # Imported on request: an idle server has neither the code nor the data.
        from bootbridge.proxy_server.status_document import core_status
        from bootbridge.runtime import status_query

        options = self._options
        rows = status_query.parse_query(query)
        frontend_tls = {"frontendTLS": self._frontend_tls.status()} if self._frontend_tls else {}
        uptime = time.monotonic() - self._started_at
        return {
            **status_query.process_status("proxy-server", uptime_seconds=uptime),
            "mode": options.mode,
            "frontend": options.uds_name or join_host_port(options.server_bind_address, options.server_port),
            "agentPort": options.agent_port,
            **(yield from core_status(self.core, rows)),
            "tls": self._agent_tls.status(),
            **frontend_tls,
            "limits": self._limits(),
        }

    def _limits(self) -> list[dict[str, object]]:
        from bootbridge.runtime.status_query import count_of, descriptor_limit, limit_row

        m, limits = self.metrics, self._agent_port.limits
        evicted = m.agent_connections_evicted_total
        budgets = sum(child.value for _, child in m.frame_budgets_exceeded_total.items())
        stalled = sum(agent.stalled_connections for agent in self.core.agent_registry)
        return [
            limit_row(
                "unadmitted agent connections", len(limits), limits.total, evicted.labels("unadmitted").value
            ),
            descriptor_limit(evicted.labels("file descriptors").value),
            limit_row("HTTP/2 frame budgets", None, None, budgets),
            limit_row(
                "stalled connections",
                stalled,
                None,
                count_of(m.closed_connections_total, "stalled frontend"),
            ),
            limit_row("log lines", None, None, logs.dropped_lines()),
            *self._audit_limits(),
        ]

    def _audit_limits(self) -> list[dict[str, object]]:
        from bootbridge.runtime.status_query import limit_row

        if (trail := self._audit_trail) is None:
            return []
        return [limit_row("audit bytes", trail.waiting_bytes, trail.waiting_bytes_max, trail.dropped)]

    # --- accepting

    def _agent_requests(
        self, stream: TlsStream, source: str, peer: str
    ) -> Callable[[Stream, Headers], StreamHandler]:
        """Returns what handles the streams of one connection to the agent port."""
        certificate = None
        if self._options.cluster_ca_cert:
            proves = self._options.agent_identifier_proof == "certificate"
            certificate = AgentCertificate(stream, self._agent_tls, time.time, proves_identifiers=proves)
        return partial(self.core.on_agent_request, credentials=certificate, source=source, peer=peer)

    def _recheck_later(self) -> None:
        self._recheck_timer = self.pump.timers.after(RECHECK_SECONDS, self._recheck_agents)

    def _recheck_agents(self) -> None:
        self._agent_tls.context()  # reads a changed CA file
        self.core.recheck_agents()
        self._recheck_later()

    def _accept_frontend_tls(self, sock: socket.socket) -> None:
        assert self._frontend_tls is not None
        if self._options.mode == "grpc":
            set_user_timeout(sock)  # an HTTP CONNECT frontend may read slowly
        peer = _peer(sock)
        TlsStream(
            self.pump,
            sock,
            self._frontend_tls.context(),
            ready=partial(self._start_frontend, caller=peer),
            failed=lambda reason: self._event_log.warning("frontend refused", peer=peer, reason=reason),
        )

    def _start_frontend_plain(self, sock: socket.socket) -> None:
        stream = PlainStream(self.pump, sock, unix=True)
        self._start_frontend(stream, "unix")
        stream.read_now()

    def _start_frontend(self, stream: PlainStream, caller: str) -> None:
        if self._options.mode == "http-connect":
            stream.start(ConnectFrontend(self.core, stream, caller))
        else:
            self._add_transport(
                Http2Transport(
                    stream,
                    on_request=partial(self.core.on_proxy_request, caller=caller),
                    keepalive_seconds=self._options.frontend_keepalive_time,
                    streams_max=FRONTEND_STREAMS_MAX,
                )
            )

    def _add_transport(self, transport: Http2Transport) -> None:
        self._transports.add(transport)
        transport.on_closed = self._on_transport_closed

    def _on_transport_closed(self, transport: Http2Transport) -> None:
        self._transports.discard(transport)
        error = transport.http2.error
        if isinstance(error, BudgetExceeded):
            self.metrics.frame_budgets_exceeded_total.labels(error.frame).value += 1
            self._agent_port.log.warning(
                "frame budget exceeded", peer=transport.peer, frame=error.frame, reason=str(error)
            )

    # --- the end

    async def stop_gracefully(self, signals: event_loop.StopSignals) -> bool:
        """Lets open connections finish within the limit; returns False after a second signal."""
        self._stop_accepting()
        limit = self._options.graceful_shutdown_timeout
        self._event_log.info("stopping", routes=self.core.route_count, timeout_seconds=limit)
        deadline = self.pump.loop.time() + limit
        while not self._idle and self.pump.loop.time() < deadline:
            if await signals.forced_within(IDLE_CHECK_SECONDS):
                return False
        return True

    @property
    def _idle(self) -> bool:
        """Whether no connection is open and all output has been sent."""
        return (
            self.core.idle
            and not self.pump.lingering
            and not any(transport.has_unsent for transport in self._transports)
        )

    def _stop_accepting(self) -> None:
        self.core.stop_accepting()
        for listener in self._listeners:
            listener.close()
        self.pump.end_turn()

    def close(self) -> None:
        self._recheck_timer.cancel()
        self._stop_accepting()
        self.core.close()
        for transport in self._transports:
            transport.http2.go_away()
        self.pump.end_turn()
        for transport in list(self._transports):
            transport.close("server stopped")
        self.pump.end_turn()
        self.pump.abort_lingering()


def _allow_list(options: ServerOptions) -> AllowedIdentifiers | None:
    """Returns what --agent-cidrs, --agent-hosts and --agent-default-route allow; None if all."""
    if options.agent_cidrs or options.agent_hosts:
        cidrs, hosts = options.agent_cidrs, options.agent_hosts
    elif options.agent_default_route:
        return None
    else:
        cidrs, hosts = ("0.0.0.0/0", "::/0"), (ANY_NAME,)
    networks = tuple(network for network in map(parse_cidr, cidrs) if network)
    return allowed_by_names(hosts, networks=networks, default_route=options.agent_default_route)


def _peer(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "gone"
    return peer_address(name[0], name[1]) if isinstance(name, tuple) else str(name)
