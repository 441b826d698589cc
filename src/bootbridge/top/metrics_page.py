"""Parses `/metrics` of a program without `/status`, such as Konnectivity's Go server and agent."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from bootbridge.top.snapshot import AGENT, NO_AGENT, SERVER, CounterRow, Snapshot
from bootbridge.top.status_document import failures_by_hop
from bootbridge.top.text import printable

PREFIXES = {SERVER: "konnectivity_network_proxy_server_", AGENT: "konnectivity_network_proxy_agent_"}
ROWS_MAX = 500
# Only our own programs have this metric.
_OURS = "transferred_bytes_total"
NOTE = "no /status (a Go program?): totals from /metrics; agents, connections and dials are not listed"
NOTE_OURS = (
    "no /status on this port: totals from /metrics; give the admin port for agents, connections and dials"
)
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_HISTOGRAM_PARTS = ("_bucket", "_sum")


class _Metrics:
    """The samples of one program, by name without prefix and by labels."""

    def __init__(self, page: str, prefix: str) -> None:
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for name, labels, value in _SAMPLE.findall(page):
            if name.startswith(prefix) and (number := _number(value)) is not None:
                found = self._samples.setdefault(name.removeprefix(prefix), [])
                found.append((dict(_LABEL.findall(labels)), number))
        self.uptime_seconds = _uptime(page)

    def total(self, name: str, **labels: str) -> int | None:
        """Returns the sum of all samples with these labels; None if there are none."""
        found = [value for own, value in self._samples.get(name, ()) if labels.items() <= own.items()]
        return int(sum(found)) if found else None

    def by_label(self, name: str, label: str) -> list[tuple[str, object]]:
        return [(own.get(label, ""), value) for own, value in self._samples.get(name, ())]

    def rows(self) -> Iterator[CounterRow]:
        for name, samples in self._samples.items():
            if name.endswith(_HISTOGRAM_PARTS):
                continue
            is_counter = name.endswith(("_total", "_count"))
            for own, value in samples:
                labels = ", ".join(f"{key}={content}" for key, content in own.items())
                yield CounterRow(printable(name), printable(labels), value, is_counter)


def parse_metrics(page: str, *, taken: float) -> Snapshot | None:
    """Returns None if it is not the page of a proxy-server or proxy-agent."""
    program = next((name for name, prefix in PREFIXES.items() if f"\n{prefix}" in f"\n{page}"), "")
    if not program:
        return None
    metrics = _Metrics(page, PREFIXES[program])
    rows = tuple(row for _, row in zip(range(ROWS_MAX), metrics.rows(), strict=False))
    ours = metrics.total(_OURS) is not None
    return (_server if program == SERVER else _agent)(metrics, rows, NOTE_OURS if ours else NOTE, taken)


def _server(metrics: _Metrics, rows: tuple[CounterRow, ...], note: str, taken: float) -> Snapshot:
    agents = metrics.total("ready_backend_connections") or 0
    established = metrics.total("established_connections")
    if established is None:  # a Go server until 0.31
        established = metrics.total("http_connections") or 0
        established += metrics.total("grpc_connections", service_method="Proxy") or 0
    return Snapshot(
        taken=taken,
        program=SERVER,
        ready=agents > 0,
        uptime_seconds=metrics.uptime_seconds,
        pending_dials=metrics.total("pending_backend_dials") or 0,
        dials_succeeded=metrics.total("dial_duration_seconds_count") or 0,
        dials_failed=failures_by_hop(metrics.by_label("dial_failure_count", "reason")),
        bytes_up=metrics.total(_OURS, direction="to_agent"),
        bytes_down=metrics.total(_OURS, direction="to_frontend"),
        queued_bytes=metrics.total("queued_bytes") or 0,
        peers_total=agents,
        connections_total=established,
        counters=rows,
        warnings=() if agents else (NO_AGENT,),
        note=note,
    )


def _agent(metrics: _Metrics, rows: tuple[CounterRow, ...], note: str, taken: float) -> Snapshot:
    servers = metrics.total("open_server_connections") or 0
    return Snapshot(
        taken=taken,
        program=AGENT,
        ready=servers > 0,
        uptime_seconds=metrics.uptime_seconds,
        dials_succeeded=metrics.total("dial_duration_seconds_count") or 0,
        dials_failed=failures_by_hop(metrics.by_label("endpoint_dial_failure_total", "reason")),
        bytes_up=metrics.total(_OURS, direction="to_endpoint"),
        bytes_down=metrics.total(_OURS, direction="to_server"),
        queued_bytes=metrics.total("queued_bytes") or 0,
        peers_total=servers,
        connections_total=metrics.total("open_endpoint_connections") or 0,
        counters=rows,
        warnings=() if servers else ("no server connected",),
        note=note,
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _uptime(page: str) -> float | None:
    """Both programs, like every Prometheus client, have the start of their process."""
    import time

    found = re.search(r"^process_start_time_seconds (\S+)$", page, re.MULTILINE)
    started = _number(found[1]) if found else None
    return max(time.time() - started, 0.0) if started else None
