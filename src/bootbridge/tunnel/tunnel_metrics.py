"""The metrics that server and agent have in common, under different prefixes."""

from __future__ import annotations

from bootbridge.metrics import Registry


class TunnelMetrics:
    """Labelled metrics are families; the others can be counted directly."""

    def _packets(self, own: Registry) -> None:
        """Konnectivity's metrics of packet streams."""
        self.stream_packets_total = own.counters(
            "stream_packets_total", "Packets handled, by segment and packet type.", "segment", "packet_type"
        )
        self.stream_errors_total = own.counters(
            "stream_errors_total",
            "Streams that failed, by segment, gRPC code and packet type.",
            "segment",
            "code",
            "packet_type",
        )

    def _process_beyond_upstream(self, own: Registry) -> None:
        """Our own metrics of the process."""
        self.log_lines_dropped_total = own.counter(
            "log_lines_dropped_total", "Log lines lost because the reader of the log did not read them."
        )
        self.tls_certificate_not_before_timestamp_seconds = own.gauges(
            "tls_certificate_not_before_timestamp_seconds",
            "Start of the validity of our own certificate, in seconds since 1970, by flag.",
            "flag",
        )
        self.tls_certificate_not_after_timestamp_seconds = own.gauges(
            "tls_certificate_not_after_timestamp_seconds",
            "End of the validity of our own certificate, in seconds since 1970, by flag.",
            "flag",
        )

    def _connections_beyond_upstream(self, own: Registry, directions: tuple[str, ...]) -> None:
        """Our own metrics of tunnelled connections."""
        self.transferred_bytes_total = own.counters(
            "transferred_bytes_total", "Payload bytes transferred, by direction.", "direction"
        ).preset(*directions)
        self.queued_bytes = own.gauges(
            "queued_bytes", "Payload bytes that wait for a slow receiver now.", "direction"
        ).preset(*directions)
        self.stalled_connections = own.gauges(
            "stalled_connections",
            "Connections whose receiver has not read for 5 seconds, although bytes wait for it.",
            "direction",
        ).preset(*directions)
        self.stalled_seconds_total = own.counters(
            "stalled_seconds_total", "Time that connections spent waiting for a slow receiver.", "direction"
        ).preset(*directions)
        self.closed_connections_total = own.counters(
            "closed_connections_total", "Closed connections, by reason.", "reason"
        )
        self.refused_destinations_total = own.counters(
            "refused_destinations_total", "Addresses that the destination policy refused, by rule.", "rule"
        )
