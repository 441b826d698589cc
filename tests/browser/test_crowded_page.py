"""The page of a server with 1,000 agents and 10,000 connections, from a real core, in a real browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from bootbridge.runtime.admin_http import AdminServer
from bootbridge.runtime.admin_routes import PAGE_PATHS
from tests.browser.conftest import OpenPage
from tests.status_page.test_site import AGENTS, CONNECTIONS, crowded_site
from tests.support.server_crowd import CrowdedServer

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The admin port of a crowded server, on an event loop in a thread."""
    site = crowded_site(CrowdedServer(AGENTS, CONNECTIONS))
    server = AdminServer(dict.fromkeys(PAGE_PATHS, site.answer))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", 0), loop).result(20)
        yield server.port
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def test_a_crowd_is_paged_and_summed_up(port: int, open_page: OpenPage) -> None:
    """50 rows a table; the drawing has 8 agents and one node for all others."""
    page = open_page(port)
    assert page.value("agentsTotal") == AGENTS
    assert page.value("routes") == CONNECTIONS
    for section, total in (("agents", AGENTS), ("connections", CONNECTIONS)):
        assert page.evaluate(f"document.querySelectorAll('#{section} tbody tr').length") == 50
        assert f"1–50 of {total:,} {section}" in page.text(f"#{section}")
    assert "992 more agents" in page.text("#path svg.wide")
    page.wait_for_updates(1)
    assert page.value("agentsTotal") == AGENTS


def test_every_row_is_reachable_by_links_and_by_the_filter(port: int, open_page: OpenPage) -> None:
    page = open_page(port, f"?connections_offset={CONNECTIONS - 50}")
    assert f"{CONNECTIONS - 49:,}–{CONNECTIONS:,} of {CONNECTIONS:,}" in page.text("#connections")
    before = page.loads()
    page.evaluate("document.querySelector('#agents a[rel=next]').click()")
    page.wait_for_load(before)
    assert f"51–100 of {AGENTS:,} agents" in page.text("#agents")
    before = page.loads()
    page.go(f"http://127.0.0.1:{port}/?filter=agent-777")
    assert page.evaluate("document.querySelectorAll('#agents tbody tr').length") == 1
    assert page.text("#connections tbody bdi") != ""
    assert page.value("agentsTotal") == AGENTS
