"""The page as it is answered: headers, files, rates, cost."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest

from bootbridge.proxy_server.status_document import core_status
from bootbridge.runtime.admin_http import AdminRequest, AdminResponse
from bootbridge.runtime.sliced_work import SlicedWork, Steps
from bootbridge.runtime.status_query import parse_query, process_status
from bootbridge.status_page.site import FILES, HEADERS, PERIOD_SECONDS_MAX, StatusSite, period_seconds
from bootbridge.status_page.view import PERIOD_SECONDS
from tests.status_page import documents
from tests.support.server_crowd import CrowdedServer

AGENTS, CONNECTIONS = 1000, 10_000
# They take about half a millisecond, as long as a slice.
CALLS_PER_STEP_MAX = 7_000

Result = TypeVar("Result")


def site_of(status: Callable[[Mapping[str, str]], dict[str, Any]]) -> StatusSite:
    def steps(query: Mapping[str, str]) -> Steps[dict[str, Any]]:
        yield
        return status(query)

    return StatusSite(steps, SlicedWork())


async def ask(site: StatusSite, path: str = "/", **query: str) -> AdminResponse:
    return await site.answer(AdminRequest(path, query, "localhost"))


@pytest.mark.parametrize("path", ["/", *FILES])
async def test_every_answer_has_the_headers_that_isolate_it(path: str) -> None:
    """Nothing inline, nothing from elsewhere, no frames, no caches, no referrer."""
    answer = await ask(site_of(lambda query: documents.server()), path)
    headers = dict(answer.headers)
    policy = {rule.partition(" ")[0]: rule for rule in headers["Content-Security-Policy"].split("; ")}
    assert policy["default-src"] == "default-src 'none'"
    assert policy["frame-ancestors"] == "frame-ancestors 'none'"
    assert [rule for rule in policy.values() if re.search(r"unsafe|https?:|\*|data:|blob:", rule)] == []
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert len(HEADERS) == len(headers)


async def test_files_are_served_with_their_types() -> None:
    site = site_of(lambda query: documents.server())
    for path, kind in FILES.items():
        answer = await ask(site, path)
        assert answer.content_type == kind
        assert len(answer.body) > 100
        assert "//" not in re.sub(
            r"^\s*//.*$", "", answer.body.replace("http://www.w3.org/2000/svg", ""), flags=re.M
        )


async def test_the_first_view_has_rates_already() -> None:
    """It waits for a second reading, so that a page without JavaScript is complete."""
    readings = iter(range(0, 10_000_000, 1_000_000))

    def status(query: Mapping[str, str]) -> dict[str, Any]:
        return documents.server(bytes={"toAgent": 0, "toFrontend": next(readings)})

    site = site_of(status)
    assert "MiB/s" in (await ask(site)).body
    assert next(readings) == 2_000_000


async def test_the_query_is_decoded_once() -> None:
    """A percent sign or a plus in a filter reaches the program as it was typed."""
    seen = []

    def status(query: Mapping[str, str]) -> dict[str, Any]:
        seen.append(parse_query(query))
        return documents.server()

    body = (await ask(site_of(status), filter="a%2Bb%2525%20c", sort="bytes", connections_offset="50")).body
    assert (seen[0].filter, seen[0].sort, seen[0].connections_offset) == ("a+b%25 c", "bytes", 50)
    assert 'value="a+b%25 c"' in body


@pytest.fixture(scope="module")
def crowd() -> CrowdedServer:
    return CrowdedServer(AGENTS, CONNECTIONS)


def crowded_site(crowd: CrowdedServer, work: SlicedWork | None = None) -> StatusSite:
    def status(query: Mapping[str, str]) -> Steps[dict[str, object]]:
        process = process_status("proxy-server", uptime_seconds=1.0)
        return process | (yield from core_status(crowd.core, parse_query(query)))

    return StatusSite(status, work or SlicedWork())


def _place(steps: Any) -> str:
    """Returns where the work has paused."""
    while (inner := steps.gi_yieldfrom) is not None and hasattr(inner, "gi_frame"):
        steps = inner
    return f"{steps.gi_code.co_qualname}:{steps.gi_frame.f_lineno if steps.gi_frame else 'end'}"


class CountedSteps(SlicedWork):
    """Counts the function calls of the longest step of all work, and where it paused."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = (0, "")

    async def run(self, steps: Steps[Result]) -> tuple[Result, float]:
        return await super().run(self._counted(steps))

    def _counted(self, steps: Steps[Result]) -> Steps[Result]:
        while True:
            calls = 0

            def count(_frame: object, event: str, _argument: object) -> None:
                nonlocal calls
                calls += event in ("call", "c_call")

            sys.setprofile(count)
            try:
                next(steps)
            except StopIteration as ended:
                result: Result = ended.value
                return result
            finally:
                sys.setprofile(None)
                self.longest = max(self.longest, (calls, _place(steps)))
            yield


@pytest.mark.parametrize("query", [{}, {"sort": "bytes"}, {"agents_sort": "rate"}, {"filter": "agent"}])
async def test_traffic_never_waits_for_a_large_part_of_a_page(
    crowd: CrowdedServer, query: dict[str, str]
) -> None:
    """The thread that transfers all bytes is free after each step. A document has at most so many agents."""
    await ask(crowded_site(crowd), **query)  # overlaps are computed when agents have changed
    work = CountedSteps()
    await ask(crowded_site(crowd, work), **query)
    assert work.longest < (CALLS_PER_STEP_MAX, ""), work.longest


@pytest.mark.parametrize(
    "query", [{}, {"sort": "bytes"}, {"filter": "agent-77"}, {"connections_offset": "9950"}]
)
async def test_a_thousand_agents_and_ten_thousand_connections_are_shown_in_pages(
    crowd: CrowdedServer, query: dict[str, str]
) -> None:
    """The document of a real core. `bench/status.py` measures what it costs."""
    body = (await ask(crowded_site(crowd), **query)).body
    assert f"{AGENTS:,}" in body
    assert f"{CONNECTIONS:,}" in body
    assert len(re.findall("<tr", body)) < 150


@pytest.mark.parametrize(
    ("cost", "seconds"),
    [(0.0, PERIOD_SECONDS), (0.045, PERIOD_SECONDS), (0.055, 11), (0.08, 16), (1.0, PERIOD_SECONDS_MAX)],
)
def test_an_expensive_page_is_updated_less_often(cost: float, seconds: float) -> None:
    """A viewer costs about 0.5 % of a CPU; an ordinary page is updated every second."""
    assert period_seconds(cost) == seconds
