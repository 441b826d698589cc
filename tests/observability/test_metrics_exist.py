"""Every metric and label of dashboard and rules exists in our programs; NOT_IN_GO lists what Go's lack."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from bootbridge.metrics import Family, Registry
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.server_metrics import ServerMetrics
from tests.support.observability_files import OWN_SERIES, TARGET_LABELS, Use, uses
from tests.support.process_endpoints import Endpoint, echo
from tests.support.process_program import free_port, until
from tests.support.process_tunnels import RefusedDialError, dial, receive
from tests.support.tunnel_programs import ANY_DESTINATION, Pairing, Programs, Server

_LABEL = re.compile(r'(\w+)="([^"]*)"')
USES = list(uses())
USED = {name for use in USES for name, _ in use.selectors} - OWN_SERIES
# What the originals do not count. README.md of deploy/observability says which panels are empty with them.
NOT_IN_GO = {
    f"konnectivity_network_proxy_server_{name}"
    for name in (
        "agent_connections_evicted_total",
        "audit_lines_dropped_total",
        "closed_connections_total",
        "dial_retries_total",
        "frame_budgets_exceeded_total",
        "ignored_identifiers_total",
        "overlapping_identifiers_total",
        "retired_agents_total",
        "token_reviews_total",
        "unadmitted_agent_connections",
    )
} | {
    f"konnectivity_network_proxy_{program}_{name}"
    for program in ("server", "agent")
    for name in (
        "log_lines_dropped_total",
        "queued_bytes",
        "refused_destinations_total",
        "stalled_connections",
        "stalled_seconds_total",
        "tls_certificate_not_after_timestamp_seconds",
        "tls_certificate_not_before_timestamp_seconds",
        "transferred_bytes_total",
    )
}


@dataclass
class Samples:
    """Label names and values of each sample name, of several pages."""

    labels: dict[str, set[str]] = field(default_factory=dict)
    values: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def add(self, samples: Iterable[str]) -> Samples:
        """Adds samples as `Web.metrics` names them: `name` or `name{label="value"}`."""
        for sample in samples:
            name, _, inside = sample.partition("{")
            labels = dict(_LABEL.findall(inside))
            self.labels.setdefault(name, set()).update(labels)
            for label, value in labels.items():
                self.values.setdefault((name, label), set()).add(value)
        return self

    def problems(self, use: Use) -> list[str]:
        """Returns the metrics, labels and label values of an expression that are not among the samples."""
        known = [(name, matchers) for name, matchers in use.selectors if name not in OWN_SERIES]
        found = [f"{name}: no such metric" for name, _ in known if name not in self.labels]
        if found or not known:
            return found
        for name, matchers in known:
            for label, (operator, value) in matchers.items():
                if label in TARGET_LABELS:
                    continue
                if label not in self.labels[name]:
                    found.append(f"{name}: no label {label}")
                elif operator in ("=", "=~") and (missing := self._missing(name, label, value)):
                    found.append(f"{name}: {label} is never {missing}")
        anywhere = set().union(*(self.labels[name] for name, _ in known))
        return found + [f"{label}: no such label" for label in sorted(use.shown_labels - anywhere)]

    def _missing(self, name: str, label: str, pattern: str) -> list[str]:
        return [value for value in pattern.split("|") if value not in self.values[name, label]]


def test_expressions_are_read_as_written() -> None:
    """The check below can fail: metric, label and value are each noticed."""
    page = ['konnectivity_a{reason="x"}']
    for expression, problem in {
        "konnectivity_b > 0": ["konnectivity_b: no such metric"],
        'konnectivity_a{cause="x"}': ["konnectivity_a: no label cause"],
        'konnectivity_a{reason="y"}': ["konnectivity_a: reason is never ['y']"],
        "sum by (hop) (konnectivity_a)": ["hop: no such label"],
        'sum by (reason) (rate(konnectivity_a{job="x", reason=~"x"}[5m])) and on (job) up == 0': [],
    }.items():
        assert Samples().add(page).problems(Use("", expression, ())) == problem
    legend = Use("", "konnectivity_a", ("{{hop}}",))
    assert Samples().add(page).problems(legend) == ["hop: no such label"]


def test_every_metric_is_defined_in_our_programs() -> None:
    """Quick: by the definitions, without running the programs."""
    defined = {
        f"process_{name}" for name in ("cpu_seconds_total", "start_time_seconds", "open_fds", "max_fds")
    }
    defined.add("process_resident_memory_bytes")
    for prefix, metrics in (("server", ServerMetrics(Registry())), ("agent", AgentMetrics(Registry()))):
        for name, metric in vars(metrics).items():
            if not name.startswith("_"):
                assert isinstance(metric, Family) or hasattr(metric, "samples")
                defined.add(f"konnectivity_network_proxy_{prefix}_{name}")
    assert {re.sub(r"(_seconds)_(bucket|count|sum)$", r"\1", name) for name in USED} - defined == set()


@pytest.fixture
def echo_endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint(echo)
    yield endpoint
    endpoint.close()


def traffic(server: Server, endpoint: Endpoint) -> None:
    """One connection, one dial that fails at the endpoint."""
    tunnel = dial(server, endpoint.address)
    tunnel.send(b"hello")
    assert receive(tunnel, 5) == b"hello"
    tunnel.close()
    until(lambda: server.metric("established_connections") == 0, "the connection is closed")
    with pytest.raises(RefusedDialError):
        dial(server, f"127.0.0.1:{free_port()}")


@pytest.mark.slow
def test_every_metric_and_label_is_on_the_pages_of_our_programs(
    programs: Programs, echo_endpoint: Endpoint
) -> None:
    """After some traffic, refused destinations, and an agent that was retired because of its age."""
    server, agent = programs.pair(
        server_flags={
            "proxy-strategies": "direct,default",
            "direct-cidrs": "192.0.2.0/24",
            "deny-destinations": "192.0.2.9/32",
        },
        agent_flags={"allow-destinations": ANY_DESTINATION, "deny-destinations": "127.0.0.2/32"},
    )
    aged = programs.server(flags={"agent-max-age": "1s"})
    programs.agent(aged)
    traffic(server, echo_endpoint)
    for refused in ("127.0.0.2:80", "192.0.2.9:80"):
        with pytest.raises(RefusedDialError, match="destination refused"):
            dial(server, refused)
    until(lambda: "retired_agents_total{" in aged.health.get("/metrics")[1], "an agent was retired", 40)
    samples = Samples()
    for program in (server, agent, aged):
        samples.add(program.health.metrics())
    problems = {use.where: found for use in USES if (found := samples.problems(use))}
    assert problems == {}


@pytest.mark.interop
def test_the_go_programs_have_every_other_metric_with_the_same_labels(
    programs: Programs, echo_endpoint: Endpoint
) -> None:
    """What the originals count is shown and alerted on as for ours."""
    server, agent = programs.pair(Pairing("go", "go"))
    traffic(server, echo_endpoint)
    grpc, _ = programs.pair(Pairing("go", "go"), "grpc")
    open_stream = dial(grpc, echo_endpoint.address)
    samples = Samples()
    for program in (server, agent, grpc):
        samples.add(program.health.metrics())
    open_stream.close()
    assert {name for name in USED if name not in samples.labels} == NOT_IN_GO
    in_go = [use for use in USES if not NOT_IN_GO & {name for name, _ in use.selectors}]
    problems = {
        use.where: found for use in in_go for found in samples.problems(use) if "is never" not in found
    }
    assert problems == {}
