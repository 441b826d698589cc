"""The responses of the health and admin ports, which are those of upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bootbridge.metrics import Registry
from bootbridge.runtime.admin_http import AdminRequest, AdminResponse, AdminServer, Route
from bootbridge.runtime.admin_routes import (
    agent_admin_routes,
    agent_health_routes,
    server_admin_routes,
    server_health_routes,
    status_routes,
)
from bootbridge.runtime.profiling_routes import profiling_routes
from bootbridge.runtime.sliced_work import SlicedWork, Steps, run_at_once
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.server_metrics import ServerMetrics


def ask(routes: dict[str, Route], path: str, host: str = "localhost:1", **query: str) -> AdminResponse:
    answer = routes[path](AdminRequest(path, query, host))
    return answer if isinstance(answer, AdminResponse) else asyncio.run(answered(answer))


async def answered(answer: Awaitable[AdminResponse]) -> AdminResponse:
    return await answer


def result_of(response: AdminResponse) -> tuple[int, str]:
    return response.status, response.body


class HealthState:
    """A metrics registry, and whether the other side is connected."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.connected = False

    def server(self) -> dict[str, Route]:
        return server_health_routes(self.registry, ready=lambda: self.connected)

    def agent(self) -> dict[str, Route]:
        return agent_health_routes(self.registry, connected=lambda: self.connected)


def status_of(query: Mapping[str, str]) -> Steps[dict[str, object]]:
    """A status document that names the query."""
    if "wrong" in query:
        raise ValueError("wrong: invalid number 'x'")
    yield
    return {"query": dict(query), "agents": [{"id": "a"}, {"id": "b"}], "routes": 0}


def status(loads: list[str] | None = None, *own_names: str) -> dict[str, Route]:
    """The routes of the status; `loads` gets an entry when the page is loaded."""

    def load(_work: SlicedWork) -> Route:
        if loads is not None:
            loads.append("page")
        return lambda request: AdminResponse(f"page {request.path}")

    return status_routes(status_of, load, *own_names)


def test_healthz_is_always_ok() -> None:
    """Liveness does not depend on a connection."""
    state = HealthState()
    assert result_of(ask(state.server(), "/healthz")) == (200, "ok")
    assert result_of(ask(state.agent(), "/healthz")) == (200, "ok")


@pytest.mark.parametrize("path", ["/readyz", "/ready"])
def test_the_server_is_ready_once_an_agent_is_connected(path: str) -> None:
    """500 with the reason before, 200 after."""
    state = HealthState()
    routes = state.server()
    assert result_of(ask(routes, path)) == (500, "no connection to any proxy agent")
    state.connected = True
    assert result_of(ask(routes, path)) == (200, "ok")


@pytest.mark.parametrize("path", ["/readyz", "/ready"])
def test_the_agent_is_ready_once_a_server_is_connected(path: str) -> None:
    """503 with the list of checks before; `ok`, or the list if asked for, after."""
    state = HealthState()
    routes = state.agent()
    failing = (503, "[+]ping ok\n[-]server-connected failed: no servers connected\n")
    assert result_of(ask(routes, path)) == failing
    assert result_of(ask(routes, path, verbose="")) == failing
    state.connected = True
    assert result_of(ask(routes, path)) == (200, "ok")
    assert result_of(ask(routes, path, verbose="")) == (
        200,
        "[+]ping ok\n[+]server-connected ok\ncheck passed\n",
    )


def test_metrics_are_on_the_health_port_and_on_the_servers_admin_port() -> None:
    """Both pages are the same, and Prometheus can read them."""
    state = HealthState()
    ServerMetrics(state.registry).http_connections.set(3)
    pages = [ask(state.server(), "/metrics"), ask(server_admin_routes(state.registry, status()), "/metrics")]

    assert pages[0] == pages[1]
    assert pages[0].content_type == "text/plain; version=0.0.4; charset=utf-8"
    samples = {s.name: s.value for f in text_string_to_metric_families(pages[0].body) for s in f.samples}
    assert samples["konnectivity_network_proxy_server_http_connections"] == 3


@pytest.mark.parametrize(
    ("host", "location"),
    [
        ("localhost:8094", "//localhost:8093/metrics"),
        ("127.0.0.1", "//127.0.0.1:8093/metrics"),
        ("[::1]:8094", "//[::1]:8093/metrics"),
        ("[::1]", "//[::1]:8093/metrics"),
    ],
)
def test_the_agents_admin_port_sends_scrapers_to_the_health_port(host: str, location: str) -> None:
    """301 to the same host under the health port."""
    answer = ask(agent_admin_routes(8093, status()), "/metrics", host)
    assert (answer.status, answer.headers) == (301, (("Location", location),))


@pytest.mark.parametrize(
    "routes", [server_admin_routes(Registry(), status()), agent_admin_routes(8093, status())]
)
def test_status_is_json_on_the_admin_port(routes: dict[str, Route]) -> None:
    """One line for each row; the query is passed on, and a wrong one is refused with the reason."""
    answer = ask(routes, "/status", sort="age")
    assert answer.content_type == "application/json"
    assert json.loads(answer.body) == run_at_once(status_of({"sort": "age"}))
    assert '\n  {"id": "b"}' in answer.body
    assert result_of(ask(routes, "/status", wrong="x")) == (400, "wrong: invalid number 'x'\n")


def test_the_status_page_is_loaded_once_and_not_before_it_is_asked_for() -> None:
    """A program without viewers must not have it in memory; `/status` does not need it."""
    loads: list[str] = []
    routes = server_admin_routes(Registry(), status(loads))
    ask(routes, "/status")
    ask(routes, "/metrics")
    assert loads == []
    for path in ("/", "/status.css", "/status.js", "/status.svg"):
        assert ask(routes, path).body == f"page {path}"
    assert loads == ["page"]


@pytest.mark.parametrize("path", ["/", "/status", "/status.js"])
def test_the_status_is_not_served_for_names_of_others(path: str) -> None:
    """A web site whose name resolves to loopback gets 421; the name that the port is bound to is served."""
    routes = status(None, "admin.internal")
    assert ask(routes, path, "rebound.example:8095").status == 421
    assert ask(routes, path, "admin.internal:8095").status == 200


def test_the_health_ports_offer_health_and_metrics_only() -> None:
    """Other pods can reach an agent's health port."""
    state = HealthState()
    for routes in (state.server(), state.agent()):
        assert set(routes) == {"/healthz", "/readyz", "/ready", "/metrics"}


def test_profiling_is_off_unless_it_is_asked_for() -> None:
    """No health or admin route has profiling data."""
    state = HealthState()
    routes = {
        **state.server(),
        **state.agent(),
        **server_admin_routes(state.registry, status()),
        **agent_admin_routes(8093, status()),
    }
    assert not [path for path in routes if path.startswith("/debug")]


async def test_the_profiling_index_shows_every_task_and_where_it_waits() -> None:
    """A hanging task can be found by its name and line."""

    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(wait_for_nothing(), name="hanging-task")
    await asyncio.sleep(0)
    page = ask(profiling_routes(), "/debug/pprof/").body
    task.cancel()

    assert "hanging-task" in page
    assert "in wait_for_nothing" in page
    moved = ask(profiling_routes(), "/debug/pprof")
    assert (moved.status, moved.headers) == (301, (("Location", "/debug/pprof/"),))


async def test_a_cpu_profile_shows_what_ran_meanwhile() -> None:
    """The profile is taken from the running loop; a second one at the same time is refused."""

    async def profiled_work() -> None:
        while True:
            sum(range(1000))
            await asyncio.sleep(0.01)

    async def profile() -> AdminResponse:
        answer = routes["/debug/pprof/profile"](AdminRequest("/debug/pprof/profile", {"seconds": "1"}, ""))
        assert not isinstance(answer, AdminResponse)
        return await answer

    routes = profiling_routes()
    worker = asyncio.create_task(profiled_work())
    first = asyncio.create_task(profile())
    await asyncio.sleep(0)
    second = await profile()
    page = await first
    worker.cancel()

    assert second.status == 409
    assert page.status == 200
    assert "profiled_work" in page.body


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "301", "²", ""])
async def test_an_invalid_profile_length_is_refused(seconds: str) -> None:
    """Anything but 1 to 300 seconds is refused."""
    answer = profiling_routes()["/debug/pprof/profile"](AdminRequest("", {"seconds": seconds}, ""))
    assert not isinstance(answer, AdminResponse)
    assert result_of(await answer) == (400, "seconds must be a number from 1 to 300\n")


def test_the_heap_page_counts_objects_by_type() -> None:
    """Types with the most objects come first."""

    class CountedObject:
        pass

    kept = [CountedObject() for _ in range(50_000)]
    page = ask(profiling_routes(), "/debug/pprof/heap").body

    assert "CountedObject" in page
    assert len(kept) == 50_000


async def test_the_routes_work_over_a_real_socket() -> None:
    """An agent's whole health port, with the request of a kubelet."""
    state = HealthState()
    AgentMetrics(state.registry)
    server = AdminServer(state.agent())
    await server.start("127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /readyz?verbose HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    finally:
        await server.close()

    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert answer.endswith(b"\r\n\r\n[+]ping ok\n[-]server-connected failed: no servers connected\n")
