"""The metrics of the proxy agent: Konnectivity's under their names, then our own.

Konnectivity's integration suite compares ``endpoint_dial_failure_total`` and
``open_endpoint_connections`` with their help texts and without samples of zero, so these two are
exactly as there.
"""

from __future__ import annotations

from bootbridge.metrics import Registry
from bootbridge.tunnel.tunnel_metrics import TunnelMetrics

PREFIX = "konnectivity_network_proxy_agent_"

_DIAL = (0.005, 0.025, 0.1, 0.5, 2.5, 10, 30)

SERVER_DIRECTIONS = ("to_server", "from_server")
DIRECTIONS = ("to_endpoint", "to_server")


class AgentMetrics(TunnelMetrics):
    def __init__(self, registry: Registry) -> None:
        own = registry.with_prefix(PREFIX)
        self._endpoints(own)
        self._servers(own)
        self._leases(own)
        self._connections_beyond_upstream(own, DIRECTIONS)
        self._process_beyond_upstream(own)

    def _endpoints(self, own: Registry) -> None:
        self.dial_duration_seconds = own.histogram(
            "dial_duration_seconds", "Time that successful dials to an endpoint took.", buckets=_DIAL
        )
        self.endpoint_dial_failure_total = own.counters(
            "endpoint_dial_failure_total",
            "Number of failures dialing the remote endpoint, by reason (example: timeout).",
            "reason",
        )
        self.open_endpoint_connections = own.gauge(
            "open_endpoint_connections", "Current number of open endpoint connections."
        )

    def _servers(self, own: Registry) -> None:
        self.server_connection_failure_count = own.counters(
            "server_connection_failure_count",
            "Server streams that failed, by direction (deprecated: use stream_errors_total).",
            "direction",
        ).preset(*SERVER_DIRECTIONS)
        self.open_server_connections = own.gauge("open_server_connections", "Open streams to proxy servers.")
        self.known_server_count = own.gauge(
            "known_server_count", "Proxy servers that the agent wants to hold."
        )
        self._packets(own)

    def _leases(self, own: Registry) -> None:
        self.lease_lists_total = own.counters(
            "lease_lists_total", "Lease list requests, by outcome.", "http_response_code", "reason"
        )
        self.lease_watches_total = own.counters(
            "lease_watches_total", "Lease watch requests, by outcome.", "http_response_code", "reason"
        )
        self.lease_list_latency_seconds = own.histograms(
            "lease_list_latency_seconds", "Time of lease list requests.", "http_response_code"
        )
