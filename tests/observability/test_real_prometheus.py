"""A real Prometheus scrapes real programs, evaluates the rules and answers the dashboard's queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.observability_files import Use, rules, uses
from tests.support.process_endpoints import Endpoint, echo
from tests.support.process_program import free_port, until
from tests.support.process_tunnels import RefusedDialError, dial, receive
from tests.support.prometheus import Prometheus
from tests.support.tunnel_programs import Programs

NO_AGENT = ("BootbridgeNoAgent", "server")
DOWN = ("BootbridgeNotAnswering", "agent")
# These metrics have no sample until what they count has happened.
MAY_BE_EMPTY = {"Retired agents", "Refused destinations and tokens"}


def at_once(rule: dict[str, Any]) -> dict[str, Any]:
    """The rule without its waiting time; all else is as delivered."""
    return {key: value for key, value in rule.items() if key != "for"}


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    started: list[Prometheus] = []

    def start(jobs: dict[str, list[str]], chosen: list[dict[str, Any]]) -> Prometheus:
        groups = {"groups": [{"name": "bootbridge", "rules": chosen}]}
        started.append(Prometheus(tmp_path / f"prometheus-{len(started)}", jobs, groups))
        started[-1].wait_until_ready()
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_alerts_follow_a_real_server_and_its_agent(
    programs: Programs, prometheus: Callable[..., Prometheus]
) -> None:
    """No agent: it fires. An agent connects: it is over. The agent is killed: both alerts say so."""
    server = programs.server()
    port = free_port()
    jobs = {"server": [f"127.0.0.1:{server.health.port}"], "agent": [f"127.0.0.1:{port}"]}
    scraper = prometheus(jobs, [at_once(rule) for rule in rules()])
    until(lambda: scraper.alerts().get(NO_AGENT) == "firing", "the alert fires without an agent")
    assert DOWN not in scraper.alerts()  # it has never answered
    agent = programs.agent(server, flags={"health-server-port": port})
    until(lambda: NO_AGENT not in scraper.alerts(), "the alert is over with an agent")
    until(lambda: scraper.query('up{job="agent"} == 1'), "the agent is scraped")
    until(
        lambda: scraper.query("konnectivity_network_proxy_agent_known_server_count"), "its metrics are stored"
    )
    assert scraper.rule_problems() == []
    agent.kill()
    until(lambda: scraper.alerts().get(NO_AGENT) == "firing", "the alert fires again")
    until(lambda: scraper.alerts().get(DOWN) == "firing", "the agent does not answer")


def test_an_alert_waits_before_it_fires(programs: Programs, prometheus: Callable[..., Prometheus]) -> None:
    """As delivered, the rule is pending for two minutes: a short reconnect wakes no one."""
    server = programs.server()
    scraper = prometheus({"server": [f"127.0.0.1:{server.health.port}"]}, rules())
    until(lambda: scraper.alerts().get(NO_AGENT) == "pending", "the alert is pending")


def test_every_query_of_the_dashboard_has_an_answer(
    programs: Programs, prometheus: Callable[..., Prometheus]
) -> None:
    """Prometheus accepts each query, and each panel has data after some traffic."""
    server, agent = programs.pair()
    jobs = {
        "server": [f"127.0.0.1:{server.health.port}"],
        "agent": [f"127.0.0.1:{agent.health.port}"],
    }
    scraper = prometheus(jobs, rules())
    endpoint = Endpoint(echo)
    try:
        # A rate needs two samples with something between them, so there is traffic while it scrapes.
        until(
            lambda: _traffic(server, endpoint) and _empty_panels(scraper) == set(), "every panel has data", 60
        )
    finally:
        endpoint.close()


def _traffic(server: Any, endpoint: Endpoint) -> bool:
    tunnel = dial(server, endpoint.address)
    tunnel.send(b"hello")
    assert receive(tunnel, 5) == b"hello"
    tunnel.close()
    with pytest.raises(RefusedDialError):
        dial(server, f"127.0.0.1:{free_port()}")
    return True


def _empty_panels(scraper: Prometheus) -> set[str]:
    alerts = {rule["alert"] for rule in rules()}
    queries: list[Use] = [use for use in uses() if use.where not in alerts]
    with_data = {use.where for use in queries if scraper.query(use.expression)}
    return {use.where for use in queries} - with_data - MAY_BE_EMPTY
