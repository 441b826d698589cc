"""The proxy agent: the core, its way to the servers, health and admin ports, and a drain at the end."""

from __future__ import annotations

import random
import time
from contextlib import AsyncExitStack
from typing import Final

from bootbridge.metrics import Registry
from bootbridge.proxy_agent.options import AgentOptions
from bootbridge.proxy_agent.server_sync import ServerSync
from bootbridge.runtime import event_loop, logs
from bootbridge.runtime.admin_http import AdminServer
from bootbridge.runtime.admin_routes import agent_admin_routes, agent_health_routes
from bootbridge.runtime.dialler import TcpDialler
from bootbridge.runtime.event_log import LoggingEventLog
from bootbridge.runtime.process_metrics import register_process_metrics
from bootbridge.runtime.process_tuning import HeapTrimmer, raise_open_file_limit, reduce_memory_use
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.tasks import spawn
from bootbridge.runtime.tls_files import TlsFiles
from bootbridge.tunnel.agent_core import AgentCore
from bootbridge.tunnel.agent_metrics import AgentMetrics

# A drained agent is done when it was idle for this long: dials that were already on their
# way, or that no other agent could take, still find it.
DRAINED_IDLE_SECONDS: Final = 3.0
IDLE_CHECK_SECONDS: Final = 0.1


def run(options: AgentOptions) -> int:
    logs.configure(
        options.log_format, options.v, "agent", log_file=options.log_file, logtostderr=options.logtostderr
    )
    reduce_memory_use()
    raise_open_file_limit()
    return event_loop.run(_serve(options))


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
        self.pump = Pump(event_loop.running_loop())
        self.registry = Registry()
        self.metrics = AgentMetrics(self.registry)
        register_process_metrics(self.registry)
        self._event_log = LoggingEventLog("agent")
        self.core = AgentCore(
            agent_id=options.agent_id,
            identifiers=options.agent_identifiers,
            stall_seconds=options.stall_timeout,
            timers=self.pump.timers,
            metrics=self.metrics,
            event_log=self._event_log,
            dialler=TcpDialler(self.pump),
        )
        self._tls = TlsFiles.agent_client(
            options.ca_cert, options.agent_cert, options.agent_key, alpn_protos=options.alpn_proto
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
        task = spawn(agent._sync.run(), "hold connections to the servers")
        stack.callback(task.cancel)
        agent._event_log.info(
            "looking for servers",
            hosts=",".join(options.proxy_server_host),
            port=options.proxy_server_port,
            agent_id=options.agent_id,
        )
        return agent

    async def _open_admin_ports(self, stack: AsyncExitStack) -> None:
        options = self._options
        routes = agent_admin_routes(options.health_server_port)
        if options.enable_profiling:
            from bootbridge.runtime.profiling_routes import profiling_routes

            routes |= profiling_routes()
        admin = AdminServer(routes)
        await admin.start(
            options.admin_bind_address, options.admin_server_port, subject="--admin-server-port"
        )
        stack.push_async_callback(admin.close)
        # Last, because who asks it takes the answer for all ports.
        health = AdminServer(
            agent_health_routes(self.registry, connected=lambda: self.ready, status=self._status)
        )
        await health.start(
            options.health_server_host, options.health_server_port, subject="--health-server-port"
        )
        stack.push_async_callback(health.close)

    def _count_leases(self) -> AsyncExitStack:
        from bootbridge.proxy_agent.kubernetes import count_leases

        return count_leases(
            self._options, self.metrics, self._sync.on_lease_count, time.time, random.Random()
        )

    @property
    def ready(self) -> bool:
        return bool(self.core.streams) and not self.core.draining

    def _status(self) -> dict[str, object]:
        return {
            **self.core.status(),
            "ready": self.ready,
            "wanted_servers": self._sync.servers.wanted,
            "tls": self._tls.status(),
        }

    async def drain(self, signals: event_loop.StopSignals) -> None:
        """Leave when idle, when the time is up, or when a second signal insists."""
        limit = self._options.drain_timeout
        self._event_log.info("draining", endpoints=self.core.endpoint_count, patience_seconds=limit)
        self._sync.start_draining()
        self.core.drain()
        self.pump.end_turn()
        now = self.pump.loop.time
        deadline, busy_at = now() + limit, now()
        while now() < deadline:
            if not self._idle:
                busy_at = now()
            elif not self.core.streams or now() - busy_at >= DRAINED_IDLE_SECONDS:
                break
            if await signals.forced_within(IDLE_CHECK_SECONDS):
                break
        self._event_log.info("stopping", endpoints=self.core.endpoint_count)

    @property
    def _idle(self) -> bool:
        """Whether nothing is under way, and everybody has taken what was said last."""
        return self.core.idle and not self.pump.lingering and not self._sync.has_unsent

    def close(self) -> None:
        self._sync.close()
        self.pump.end_turn()
        self.pump.abort_lingering()
