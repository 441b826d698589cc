"""Upstream's metric names, labels and buckets, exactly; dashboards made for the original depend on them."""

from __future__ import annotations

import os
import time

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from bootbridge.metrics import Counter, Family, Gauge, Histogram, Registry
from bootbridge.runtime.process_metrics import register_process_metrics
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.server_metrics import ServerMetrics

SHORT = ["1e-06", "1e-05", "0.0001", "0.005", "0.025", "0.1", "0.5", "2.5", "12.5", "+Inf"]
LIFETIME = ["1", "5", "15", "30", "60", "300", "900", "1800", "3600", "14400", "43200", "86400", "+Inf"]
DEFAULT = ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf"]
AGENT_DIAL = ["0.005", "0.025", "0.1", "0.5", "2.5", "10", "30", "+Inf"]

SERVER = {
    "dial_duration_seconds": ("histogram", (), SHORT),
    "frontend_write_duration_seconds": ("histogram", (), SHORT),
    "connection_duration_seconds": ("histogram", (), LIFETIME),
    "grpc_connections": ("gauge", ("service_method",), None),
    "http_connections": ("gauge", (), None),
    "ready_backend_connections": ("gauge", (), None),
    "ready_backends": ("gauge", ("proxy_strategy",), None),
    "pending_backend_dials": ("gauge", (), None),
    "established_connections": ("gauge", (), None),
    "full_receive_channels": ("gauge", ("service_method",), None),
    "dial_failure_count": ("counter", ("reason",), None),
    "stream_packets_total": ("counter", ("segment", "packet_type"), None),
    "stream_errors_total": ("counter", ("segment", "code", "packet_type"), None),
    "culled_leases_count": ("counter", (), None),
    "lease_delete_latency_seconds": ("histogram", ("http_status_code",), DEFAULT),
    "lease_list_latency_seconds": ("histogram", ("http_status_code",), DEFAULT),
    "lease_delete_total": ("counter", ("http_status_code", "reason"), None),
    "lease_list_total": ("counter", ("http_status_code", "reason"), None),
    # Ours:
    "transferred_bytes_total": ("counter", ("direction",), None),
    "queued_bytes": ("gauge", ("direction",), None),
    "stalled_connections": ("gauge", ("direction",), None),
    "stalled_seconds_total": ("counter", ("direction",), None),
    "closed_connections_total": ("counter", ("reason",), None),
    "audit_lines_dropped_total": ("counter", (), None),
    "log_lines_dropped_total": ("counter", (), None),
    "tls_certificate_not_before_timestamp_seconds": ("gauge", ("flag",), None),
    "tls_certificate_not_after_timestamp_seconds": ("gauge", ("flag",), None),
    "refused_destinations_total": ("counter", ("rule",), None),
    "dial_retries_total": ("counter", (), None),
    "unadmitted_agent_connections": ("gauge", (), None),
    "agent_connections_evicted_total": ("counter", ("reason",), None),
    "agent_handshakes_delayed_total": ("counter", (), None),
    "frame_budgets_exceeded_total": ("counter", ("frame",), None),
    "ignored_identifiers_total": ("counter", (), None),
    "retired_agents_total": ("counter", ("reason",), None),
    "overlapping_identifiers_total": ("counter", (), None),
    "token_reviews_total": ("counter", ("result",), None),
}
AGENT = {
    "dial_duration_seconds": ("histogram", (), AGENT_DIAL),
    "server_connection_failure_count": ("counter", ("direction",), None),
    "endpoint_dial_failure_total": ("counter", ("reason",), None),
    "open_server_connections": ("gauge", (), None),
    "known_server_count": ("gauge", (), None),
    "open_endpoint_connections": ("gauge", (), None),
    "stream_packets_total": ("counter", ("segment", "packet_type"), None),
    "stream_errors_total": ("counter", ("segment", "code", "packet_type"), None),
    "lease_lists_total": ("counter", ("http_response_code", "reason"), None),
    "lease_watches_total": ("counter", ("http_response_code", "reason"), None),
    "lease_list_latency_seconds": ("histogram", ("http_response_code",), DEFAULT),
    # Ours:
    "transferred_bytes_total": ("counter", ("direction",), None),
    "queued_bytes": ("gauge", ("direction",), None),
    "stalled_connections": ("gauge", ("direction",), None),
    "stalled_seconds_total": ("counter", ("direction",), None),
    "closed_connections_total": ("counter", ("reason",), None),
    "log_lines_dropped_total": ("counter", (), None),
    "tls_certificate_not_before_timestamp_seconds": ("gauge", ("flag",), None),
    "tls_certificate_not_after_timestamp_seconds": ("gauge", ("flag",), None),
    "refused_destinations_total": ("counter", ("rule",), None),
}
TABLES = [
    (ServerMetrics, "konnectivity_network_proxy_server_", SERVER),
    (AgentMetrics, "konnectivity_network_proxy_agent_", AGENT),
]


def touch(metric: object) -> None:
    """Count something, so that a child exists and is shown."""
    child = metric.labels(*("x" for _ in metric.label_names)) if isinstance(metric, Family) else metric
    if isinstance(child, Histogram):
        child.observe(1)
    else:
        assert isinstance(child, Counter | Gauge)
        child.inc()


def sampled(family: Metric) -> dict[str, str]:
    """The labels of the family's last sample: the child that `touch` made."""
    return family.samples[-1].labels


@pytest.mark.parametrize(("metrics_class", "prefix", "table"), TABLES)
def test_every_metric_has_its_exact_name_type_labels_and_buckets(
    metrics_class: type[ServerMetrics] | type[AgentMetrics], prefix: str, table: dict
) -> None:
    """The page holds exactly the metrics of the table, and the attribute is named as the metric."""
    registry = Registry()
    metrics = metrics_class(registry)
    for name in table:
        touch(getattr(metrics, name))
    page = registry.exposition()
    families = {family.name: family for family in text_string_to_metric_families(page)}

    assert [name for name in dir(metrics) if not name.startswith("_")] == sorted(table)
    assert page.count("# TYPE ") == len(table)
    for name, (kind, labels, buckets) in table.items():
        assert f"# TYPE {prefix}{name} {kind}\n" in page
        family = families[prefix + (name.removesuffix("_total") if kind == "counter" else name)]
        assert set(sampled(family)) == set(labels), name
        if buckets:
            bounds = [s.labels["le"] for s in family.samples if s.name.endswith("_bucket")]
            assert bounds[-len(buckets) :] == buckets, name


def test_server_values_known_beforehand_show_as_zero() -> None:
    """Strategies, dial failures and directions are visible before anything has happened."""
    registry = Registry()
    ServerMetrics(registry)
    lines = registry.exposition().splitlines()

    prefix = "konnectivity_network_proxy_server_"
    for strategy in ("default", "destHost", "defaultRoute"):
        assert f'{prefix}ready_backends{{proxy_strategy="{strategy}"}} 0' in lines
    assert f'{prefix}dial_failure_count{{reason="no_agent"}} 0' in lines
    assert f'{prefix}transferred_bytes_total{{direction="to_frontend"}} 0' in lines
    assert f'{prefix}token_reviews_total{{result="cached"}} 0' in lines


def test_process_metrics_tell_the_truth_about_this_process() -> None:
    """Start time, memory, CPU time and descriptors come from the system at scrape time."""
    registry = Registry()
    register_process_metrics(registry)

    def value(name: str) -> float:
        families = text_string_to_metric_families(registry.exposition())
        return next(s.value for f in families for s in f.samples if s.name == name)

    assert 0 <= time.time() - value("process_start_time_seconds") < 86400
    assert 1 << 20 < value("process_resident_memory_bytes") < value("process_virtual_memory_bytes")
    assert 0 < value("process_cpu_seconds_total") <= time.process_time()
    assert value("process_max_fds") > value("process_open_fds")
    before = value("process_open_fds")
    descriptors = [os.dup(0) for _ in range(3)]
    try:
        assert value("process_open_fds") == before + 3
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
