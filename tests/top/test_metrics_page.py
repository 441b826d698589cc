"""`/metrics` of a program without `/status` becomes a snapshot with totals."""

from __future__ import annotations

import pytest

from bootbridge.metrics import Registry
from bootbridge.top.metrics_page import NOTE, NOTE_OURS, parse_metrics
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.server_metrics import ServerMetrics

GO_SERVER = """\
# HELP go_goroutines Number of goroutines
# TYPE go_goroutines gauge
go_goroutines 19
konnectivity_network_proxy_server_dial_duration_seconds_bucket{le="+Inf"} 7
konnectivity_network_proxy_server_dial_duration_seconds_sum 0.02
konnectivity_network_proxy_server_dial_duration_seconds_count 7
konnectivity_network_proxy_server_dial_failure_count{reason="error_response"} 2
konnectivity_network_proxy_server_dial_failure_count{reason="no_agent"} 1
konnectivity_network_proxy_server_http_connections 3
konnectivity_network_proxy_server_ready_backend_connections 1
"""


def test_a_go_server_is_read() -> None:
    found = parse_metrics(GO_SERVER, taken=0.0)
    assert found is not None
    assert (found.program, found.ready, found.note) == ("proxy-server", True, NOTE)
    assert (found.peers_total, found.connections_total, found.dials_succeeded) == (1, 3, 7)
    assert found.dials_failed == {"agent to endpoint": 2, "server: no agent": 1}
    assert found.bytes_up is None
    assert not found.has_details


def test_histogram_buckets_are_not_rows() -> None:
    found = parse_metrics(GO_SERVER, taken=0.0)
    assert found is not None
    assert [row.name for row in found.counters][:2] == ["dial_duration_seconds_count", "dial_failure_count"]
    assert found.counters[1].labels == "reason=error_response"


def test_our_own_metrics_have_the_names_that_are_read() -> None:
    """A health port of ours has `/metrics` and no `/status`."""
    registry = Registry()
    metrics = ServerMetrics(registry)
    metrics.transferred_bytes_total.labels("to_agent").value = 11
    metrics.transferred_bytes_total.labels("to_frontend").value = 22
    metrics.pending_backend_dials.value = 4
    metrics.established_connections.value = 5
    metrics.ready_backend_connections.value = 2
    metrics.dial_duration_seconds.observe(0.1)
    found = parse_metrics(registry.exposition(), taken=0.0)
    assert found is not None
    assert (found.bytes_up, found.bytes_down, found.pending_dials, found.connections_total) == (11, 22, 4, 5)
    assert (found.peers_total, found.dials_succeeded, found.note) == (2, 1, NOTE_OURS)


def test_our_own_agents_metrics_too() -> None:
    registry = Registry()
    metrics = AgentMetrics(registry)
    metrics.open_server_connections.value = 1
    metrics.open_endpoint_connections.value = 6
    metrics.transferred_bytes_total.labels("to_endpoint").value = 11
    metrics.endpoint_dial_failure_total.labels("timeout").value = 3
    found = parse_metrics(registry.exposition(), taken=0.0)
    assert found is not None
    assert (found.program, found.peers_total, found.connections_total) == ("proxy-agent", 1, 6)
    assert (found.bytes_up, found.dials_failed) == (11, {"timeout": 3})


def test_a_server_without_agents_is_not_ready() -> None:
    found = parse_metrics(GO_SERVER.replace("connections 1", "connections 0"), taken=0.0)
    assert found is not None
    assert (found.ready, found.warnings) == (False, ("no agent connected",))


@pytest.mark.parametrize("page", ["", "<html>", "go_goroutines 19\n", "\x00\xff"])
def test_another_page_is_not_read(page: str) -> None:
    assert parse_metrics(page, taken=0.0) is None


def test_values_that_are_not_numbers_are_left_out() -> None:
    page = GO_SERVER + 'konnectivity_network_proxy_server_http_connections{a="\\x1b"} NaN\n'
    page += "konnectivity_network_proxy_server_pending_backend_dials x\n"
    found = parse_metrics(page, taken=0.0)
    assert found is not None
    assert (found.connections_total, found.pending_dials) == (3, 0)


def test_labels_cannot_control_the_terminal() -> None:
    found = parse_metrics(GO_SERVER + 'konnectivity_network_proxy_server_x{a="\x1b[2J"} 1\n', taken=0.0)
    assert found is not None
    assert found.counters[-1].labels == "a=\\x1b[2J"
