"""The metrics of the proxy server: Konnectivity's under their names, then our own.

An attribute has the name of its metric without the prefix. Names and bucket bounds are Konnectivity's,
so that dashboards and alerts made for it keep working.
"""

from __future__ import annotations

from bootbridge.metrics import Registry
from bootbridge.tunnel.tunnel_metrics import TunnelMetrics
from bootbridge.wire.http2_budgets import NAMES

PREFIX = "konnectivity_network_proxy_server_"

_SHORT = (1e-6, 1e-5, 1e-4, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5)
_LIFETIME = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 14400, 43200, 86400)

SERVICE_METHODS = ("Proxy", "Connect")
STRATEGIES = ("default", "destHost", "defaultRoute")
DIAL_FAILURES = (
    "no_agent",
    "error_response",
    "unrecognized_response",
    "send_rsp",
    "backend_close",
    "backend_dial_timeout",
    "frontend_close",
)
DIRECTIONS = ("to_agent", "to_frontend")
EVICTION_REASONS = ("unadmitted", "file descriptors")
TOKEN_REVIEW_RESULTS = ("authenticated", "denied", "error", "cached", "invalid")


class ServerMetrics(TunnelMetrics):
    def __init__(self, registry: Registry) -> None:
        own = registry.with_prefix(PREFIX)
        self._dials(own)
        self._connections(own)
        self._streams(own)
        self._leases(own)
        self._beyond_upstream(own)

    def _dials(self, own: Registry) -> None:
        self.dial_duration_seconds = own.histogram(
            "dial_duration_seconds", "Time from DIAL_REQ to a successful DIAL_RSP.", buckets=_SHORT
        )
        self.pending_backend_dials = own.gauge(
            "pending_backend_dials", "Dials sent to an agent and not answered yet."
        )
        self.dial_failure_count = own.counters(
            "dial_failure_count", "Dials that did not become a connection, by reason.", "reason"
        ).preset(*DIAL_FAILURES)

    def _connections(self, own: Registry) -> None:
        self.grpc_connections = own.gauges(
            "grpc_connections", "Open gRPC streams, by service method.", "service_method"
        ).preset(*SERVICE_METHODS)
        self.http_connections = own.gauge("http_connections", "Open HTTP CONNECT connections.")
        self.established_connections = own.gauge(
            "established_connections", "Connections from a frontend to an endpoint that are established now."
        )
        self.connection_duration_seconds = own.histogram(
            "connection_duration_seconds", "Lifetime of closed connections.", buckets=_LIFETIME
        )
        self.ready_backend_connections = own.gauge(
            "ready_backend_connections", "Agent streams that can take dials (deprecated: use ready_backends)."
        )
        self.ready_backends = own.gauges(
            "ready_backends", "What each strategy can choose from.", "proxy_strategy"
        ).preset(*STRATEGIES)

    def _streams(self, own: Registry) -> None:
        self._packets(own)
        self.full_receive_channels = own.gauges(
            "full_receive_channels", "Streams whose receive queue is full.", "service_method"
        ).preset(*SERVICE_METHODS)
        self.frontend_write_duration_seconds = own.histogram(
            "frontend_write_duration_seconds",
            "Always empty: a write never waits here; see queued_bytes and stalled_seconds_total.",
            buckets=_SHORT,
        )

    def _leases(self, own: Registry) -> None:
        self.culled_leases_count = own.counter("culled_leases_count", "Expired server leases deleted.")
        self.lease_delete_latency_seconds = own.histograms(
            "lease_delete_latency_seconds", "Time of lease delete requests.", "http_status_code"
        )
        self.lease_list_latency_seconds = own.histograms(
            "lease_list_latency_seconds", "Time of lease list requests.", "http_status_code"
        )
        self.lease_delete_total = own.counters(
            "lease_delete_total", "Lease delete requests, by outcome.", "http_status_code", "reason"
        )
        self.lease_list_total = own.counters(
            "lease_list_total", "Lease list requests, by outcome.", "http_status_code", "reason"
        )

    def _beyond_upstream(self, own: Registry) -> None:
        self._connections_beyond_upstream(own, DIRECTIONS)
        self._process_beyond_upstream(own)
        self.audit_lines_dropped_total = own.counter(
            "audit_lines_dropped_total", "Lines of --audit-log lost because the file was full or too slow."
        )
        self.dial_retries_total = own.counter(
            "dial_retries_total", "Dials sent to a second agent because the first was lost."
        )
        self.unadmitted_agent_connections = own.gauge(
            "unadmitted_agent_connections", "Connections to the agent port without an admitted stream."
        )
        self.agent_connections_evicted_total = own.counters(
            "agent_connections_evicted_total",
            "Connections to the agent port closed because there were too many, by reason.",
            "reason",
        ).preset(*EVICTION_REASONS)
        self.agent_handshakes_delayed_total = own.counter(
            "agent_handshakes_delayed_total",
            "TLS handshakes of agents that waited because of faults of their source.",
        )
        self.frame_budgets_exceeded_total = own.counters(
            "frame_budgets_exceeded_total",
            "HTTP/2 connections closed because of too many frames of one kind, by frame.",
            "frame",
        ).preset(*NAMES)
        self.ignored_identifiers_total = own.counter(
            "ignored_identifiers_total", "Identifiers that agents advertised and may not advertise."
        )
        self.retired_agents_total = own.counters(
            "retired_agents_total",
            "Agents disconnected because their credentials ended, by reason.",
            "reason",
        )
        self.overlapping_identifiers_total = own.counter(
            "overlapping_identifiers_total",
            "Identifiers of new agents that overlapped with another agent's.",
        )
        self.token_reviews_total = own.counters(
            "token_reviews_total", "Agent tokens examined, by result.", "result"
        ).preset(*TOKEN_REVIEW_RESULTS)
