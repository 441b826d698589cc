"""The proxy-agent process: the core, its connections to servers, health and admin ports, drain."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

from bootbridge.metrics import Registry
from bootbridge.proxy_agent.options import AgentOptions
from bootbridge.proxy_agent.server_sync import ServerSync
from bootbridge.runtime import event_loop, logs, proxy_process
from bootbridge.runtime.admin_http import Route
from bootbridge.runtime.admin_routes import agent_admin_routes, agent_health_routes, status_routes
from bootbridge.runtime.destination_policy import DestinationPolicy
from bootbridge.runtime.dialler import TcpDialler
from bootbridge.runtime.event_log import LoggingEventLog
from bootbridge.runtime.process_metrics import register_process_metrics
from bootbridge.runtime.process_tuning import HeapTrimmer
from bootbridge.runtime.proxy_process import AdminPort, open_admin_ports
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.sliced_work import SlicedWork, Steps
from bootbridge.runtime.tasks import spawn
from bootbridge.runtime.tls_files import TlsFiles
from bootbridge.tunnel.agent_core import AgentCore
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.call_pauses import PAUSE_SECONDS, CallPauses

# A draining agent stops after this idle time. Until then it serves dials that were already on their way, or
# that no other agent can serve.
DRAINED_IDLE_SECONDS: Final = 3.0
IDLE_CHECK_SECONDS: Final = 0.1
# At the end of its time, for at most half of it, a draining agent closes connections between two calls.
CLOSE_PAUSED_SECONDS: Final = 2.0
PAUSE_CHECK_SECONDS: Final = PAUSE_SECONDS / 3


def run(options: AgentOptions) -> int:
    return proxy_process.run("agent", options, _serve(options))


async def _serve(options: AgentOptions) -> int:
    signals = event_loop.StopSignals()
    async with AsyncExitStack() as stack:
        agent = await ProxyAgent.start(options, stack)
        await signals.stop_requested()
        await agent.drain(signals)
        signals.restore_default_handlers()
    return 0


class ProxyAgent:
    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._started_at = time.monotonic()
        self.pump = Pump(event_loop.running_loop())
        self.registry = Registry()
        self.metrics = AgentMetrics(self.registry)
        register_process_metrics(self.registry)
        self.metrics.log_lines_dropped_total.set_function(logs.dropped_lines)
        self._event_log = LoggingEventLog("agent")
        self.core = AgentCore(
            agent_id=options.agent_id,
            identifiers=options.agent_identifiers,
            stall_seconds=options.stall_timeout,
            timers=self.pump.timers,
            wall_clock=time.time,
            metrics=self.metrics,
            event_log=self._event_log,
            dialler=TcpDialler(
                self.pump,
                DestinationPolicy(options.allow_destinations, options.deny_destinations),
                self.metrics.refused_destinations_total,
            ),
        )
        self._tls = TlsFiles.agent_client(
            options.ca_cert, options.agent_cert, options.agent_key, alpn_protos=options.alpn_proto
        )
        self._tls.register_validity(
            self.metrics.tls_certificate_not_before_timestamp_seconds,
            self.metrics.tls_certificate_not_after_timestamp_seconds,
        )
        self._sync = ServerSync(options, self.pump, self.core, self._tls)

    @classmethod
    async def start(cls, options: AgentOptions, stack: AsyncExitStack) -> ProxyAgent:
        agent = cls(options)
        stack.callback(agent.close)
        transferred = agent.metrics.transferred_bytes_total.labels("to_endpoint")
        stack.callback(HeapTrimmer(agent.pump.loop, lambda: transferred.value).close)
        await agent._open_admin_ports(stack)
        if options.count_server_leases:
            await stack.enter_async_context(agent._count_leases())
        task = spawn(agent._sync.run(), "connect to servers")
        stack.callback(task.cancel)
        agent._event_log.info(
            "agent started",
            hosts=",".join(options.proxy_server_host),
            port=options.proxy_server_port,
            agent_id=options.agent_id,
        )
        return agent

    async def _open_admin_ports(self, stack: AsyncExitStack) -> None:
        options = self._options
        status = status_routes(self._status, self._load_status_page, options.admin_bind_address)
        admin_routes = agent_admin_routes(options.health_server_port, status)
        health_routes = agent_health_routes(self.registry, connected=lambda: self.ready)
        health_port = options.health_server_port
        await open_admin_ports(
            stack,
            admin=AdminPort(
                "--admin-server-port", options.admin_bind_address, options.admin_server_port, admin_routes
            ),
            health=AdminPort("--health-server-port", options.health_server_host, health_port, health_routes),
            profiling=options.enable_profiling,
        )

    def _count_leases(self) -> AsyncExitStack:
        from bootbridge.proxy_agent.kubernetes import count_leases

        return count_leases(
            self._options, self.metrics, self._sync.on_lease_count, time.time, random.Random()
        )

    @property
    def ready(self) -> bool:
        return bool(self.core.streams) and not self.core.draining

    def _load_status_page(self, work: SlicedWork) -> Route:
        from bootbridge.status_page.site import StatusSite

        return StatusSite(self._status, work).answer

    def _status(self, query: Mapping[str, str]) -> Steps[dict[str, object]]:
        # Imported on request: an idle agent has neither the code nor the data.
        from bootbridge.proxy_agent.status_document import core_status, server_rows
        from bootbridge.runtime import status_query

        rows = status_query.parse_query(query)
        overrun = status_query.count_of(self.metrics.closed_connections_total, "stalled endpoint")
        stalled = sum(stream.stalled_connections for stream in self.core.streams)
        uptime = time.monotonic() - self._started_at
        return {
            **status_query.process_status("proxy-agent", uptime_seconds=uptime),
            "ready": self.ready,
            **(yield from core_status(self.core, rows)),
            "wantedServers": self._sync.servers.wanted,
            "servers": server_rows(self._sync.states()),
            "tls": self._tls.status(),
            "limits": [
                status_query.descriptor_limit(0),
                status_query.limit_row("stalled connections", stalled, None, overrun),
                status_query.limit_row("log lines", None, None, logs.dropped_lines()),
            ],
        }

    async def drain(self, signals: event_loop.StopSignals) -> None:
        """Returns when idle, after the timeout, or at a second signal."""
        limit = self._options.drain_timeout
        self._event_log.info("draining", endpoints=self.core.endpoint_count, timeout_seconds=limit)
        self._sync.start_draining()
        self.core.drain()
        self.pump.end_turn()
        now = self.pump.loop.time
        deadline, busy_at = now() + limit, now()
        ending = deadline - min(CLOSE_PAUSED_SECONDS, limit / 2)
        pauses, interval = CallPauses(self.core), IDLE_CHECK_SECONDS
        while now() < deadline:
            if not self._idle:
                busy_at = now()
            elif not self.core.streams or now() - busy_at >= DRAINED_IDLE_SECONDS:
                break
            if now() < ending:
                pauses.watch()
            else:
                pauses.close()
                self.pump.end_turn()
                interval = PAUSE_CHECK_SECONDS
            if await signals.forced_within(interval):
                break
        self._event_log.info("stopping", endpoints=self.core.endpoint_count)

    @property
    def _idle(self) -> bool:
        """Whether no connection is open and all output has been sent."""
        return self.core.idle and not self.pump.lingering and not self._sync.has_unsent

    def close(self) -> None:
        self._sync.close()
        self.pump.end_turn()
        self.pump.abort_lingering()
