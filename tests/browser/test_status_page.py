"""The status page in a real browser, served by real programs.

Waiting is counted in the page's own updates, one a second: a slow machine makes them slower, not more.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.browser.conftest import OpenPage
from tests.support.chromium import Page
from tests.support.process_endpoints import Endpoint, HttpEndpoint, NonReader, echo
from tests.support.process_program import free_port, until
from tests.support.process_tunnels import ConnectTunnel, RefusedDialError, dial, http_request
from tests.support.tunnel_programs import AGENT_METRICS, SERVER_METRICS, Programs, Server

pytestmark = pytest.mark.browser

HOSTILE_ID = "<script>alert(1)</script>\"'&"
TWO_SECONDS_OF_UPDATES = 2
NARROW = 360


@contextmanager
def load(server: Server, address: str, size: int = 20_000) -> Iterator[None]:
    """Requests over one connection, until the block ends."""
    ended = threading.Event()

    def run() -> None:
        tunnel = dial(server, address)
        while not ended.wait(0.02):
            http_request(tunnel, f"/bytes/{size}")
        tunnel.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def stalled_upload(server: Server, address: str) -> Iterator[None]:
    """A caller that sends to an endpoint that does not read, from the moment when nothing moves any more."""
    tunnel = ConnectTunnel.dial(server, address, patience=120)
    ended = threading.Event()

    def send() -> None:
        try:
            while True:
                tunnel.send(bytes(65536))
        except OSError:
            ended.set()

    def sent() -> int:
        (row,) = server.admin.status()["connections"]
        return int(row["bytesUp"]) if row["waitingFor"] == "endpoint to read" else 0

    thread = threading.Thread(target=send)
    thread.start()
    try:
        until(lambda: (before := sent()) and not ended.wait(0.3) and sent() == before, "the upload stalls")
        yield
    finally:
        tunnel.sock.shutdown(socket.SHUT_RDWR)
        thread.join()
        tunnel.close()


def shown_after(page: Page, expression: str, what: str) -> int:
    """Waits until an expression is true; returns how many updates began since."""
    before = page.requests_of_script()
    page.until(expression, what)
    return page.requests_of_script() - before


def contains(text: str, selector: str = "main") -> str:
    return f"document.querySelector({selector!r}).textContent.includes({text!r})"


# --- loading and updating


def test_the_page_loads_without_errors_and_without_outside_requests(
    programs: Programs, open_page: OpenPage
) -> None:
    """Page, style, script and icon, all from the admin port; the fixture checks console and requests."""
    server, agent = programs.pair()
    for program in (server, agent):
        page = open_page(program)
        page.wait_for_updates(2)
        paths = {url.rpartition("/")[2] for url in page.requests()}
        assert paths >= {"", "status.css", "status.js"}
        assert page.complaints() == []
    assert page.evaluate("document.title") == "proxy-agent status"


def test_numbers_change_under_load_and_equal_status_and_metrics(
    programs: Programs, open_page: OpenPage, web: HttpEndpoint
) -> None:
    """While load runs, rates and totals grow; afterwards page, /status and /metrics agree to the byte."""
    server, agent = programs.pair()
    pages = {"server": open_page(server), "agent": open_page(agent)}
    before = pages["server"].value("bytesToFrontend")
    with load(server, web.address):
        for page in pages.values():
            page.until(contains("iB/s", "#path"), "a rate in the drawing")
            page.until(contains("iB/s", "#connections"), "a rate of the connection")
        pages["server"].until(f"{number('bytesToFrontend')} > {before}", "bytes grow")
        between = pages["server"].value("bytesToFrontend")
        pages["server"].until(f"{number('bytesToFrontend')} > {between}", "bytes go on growing")
    until(lambda: server.admin.status()["routes"] == 0, "the connection is closed")
    server_metrics = server.health.metrics()
    status = server.admin.status()
    for name, direction in (("toAgent", "to_agent"), ("toFrontend", "to_frontend")):
        expected = status["bytes"][name]
        assert expected > 0
        assert (
            server_metrics[f'{SERVER_METRICS}transferred_bytes_total{{direction="{direction}"}}'] == expected
        )
        pages["server"].until(f"{number(f'bytesT{name[1:]}')} === {expected}", f"{name} as in /status")
    agent_metrics = agent.health.metrics()
    for name, direction in (("toEndpoint", "to_endpoint"), ("toServer", "to_server")):
        expected = int(agent_metrics[f'{AGENT_METRICS}transferred_bytes_total{{direction="{direction}"}}'])
        assert agent.admin.status()["bytes"][name] == expected
        pages["agent"].until(f"{number(f'bytesT{name[1:]}')} === {expected}", f"{name} as in /metrics")
    for page in pages.values():
        page.until(f"{number('dialsSucceeded')} === 1", "the dial is counted")
        page.until(f"{number('routes')} === 0", "the connection is gone")


def number(name: str) -> str:
    return f"Number(document.querySelector('data[data-name={name}]').value)"


def test_a_failed_dial_is_visible_within_two_seconds(programs: Programs, open_page: OpenPage) -> None:
    """With outcome, hop and reason, on both pages, in the drawing and among the problems."""
    server, agent = programs.pair()
    pages = [open_page(server), open_page(agent)]
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(RefusedDialError):
        dial(server, address)
    for page in pages:
        updates = shown_after(page, contains("connection refused", "#failures"), "the failed dial")
        assert updates <= TWO_SECONDS_OF_UPDATES
        assert address in page.text("#failures")
        assert "1 dial failed in the last minute" in page.text("#overview")
        assert "1 failed" in page.text("#path svg.wide")
    assert "agent to endpoint" in pages[0].text("#failures")


def test_a_stalled_connection_is_visible_within_two_seconds(
    programs: Programs, open_page: OpenPage, endpoint: Callable[..., Endpoint]
) -> None:
    """The page says which side does not read."""
    server, _ = programs.pair()
    non_reader = NonReader()
    stalled = endpoint(non_reader)
    page = open_page(server)
    with stalled_upload(server, stalled.address):
        updates = shown_after(page, contains("stalled", "#connections"), "the stalled connection")
        assert updates <= TWO_SECONDS_OF_UPDATES
        assert "waits for endpoint to read" in page.text("#connections")
        assert "1 stalled connection" in page.text("#overview")
        assert "1 stalled" in page.text("#path svg.wide")
    non_reader.released.set()


def test_a_program_that_stopped_is_noticed(programs: Programs, open_page: OpenPage) -> None:
    """The page says since when it has no answer, and goes on when the program is back."""
    server, _ = programs.pair()
    page = open_page(server)
    # Reset if the server ends while the page asks.
    for error in ("REFUSED", "RESET"):
        page.expected_complaints.append(f"Failed to load resource: net::ERR_CONNECTION_{error}")
    assert not page.text("#lost")
    server.kill()
    page.until(contains("No answer since", "#lost"), "the lost connection")
    programs.server(flags={"admin-port": server.admin.port})
    page.until("document.getElementById('lost').hidden", "the program is back")


def test_the_page_can_be_paused(programs: Programs, open_page: OpenPage, web: HttpEndpoint) -> None:
    """A paused page asks for nothing; resumed, it shows the present state at once."""
    server, _ = programs.pair()
    page = open_page(server)
    page.wait_for_updates(1)
    page.evaluate("document.getElementById('pause').click()")
    page.until("document.getElementById('pause').getAttribute('aria-pressed') === 'true'", "paused")
    frozen = page.text("#updated")
    with load(server, web.address):
        until(lambda: server.admin.status()["bytes"]["toFrontend"] > 100_000, "load")
    assert page.value("bytesToFrontend") == 0
    assert page.text("#updated") == frozen
    page.evaluate("document.getElementById('pause').click()")
    page.until(f"{number('bytesToFrontend')} > 100000", "the present state")


# --- hostile input


def test_a_hostile_agent_id_is_shown_as_text(
    programs: Programs, open_page: OpenPage, endpoint: Callable[..., Endpoint]
) -> None:
    """On both pages, after updates too, with an open connection: no script runs, no element appears."""
    server, agent = programs.pair(agent_flags={"agent-id": HOSTILE_ID})
    tunnel = dial(server, endpoint(echo).address)
    tunnel.send(b"x")
    for program in (server, agent):
        page = open_page(program)
        page.wait_for_updates(2)
        assert HOSTILE_ID in page.text("main" if program is server else "header")
        assert page.evaluate("document.scripts.length") == 1
        assert "javascript dialog" not in str(page.events).lower()
    tunnel.close()


@pytest.mark.parametrize("agent_id", ["\x1b" * 60, "\x97" * 47, "W" * 200])
def test_a_hostile_id_stays_inside_its_node_and_its_column(
    programs: Programs, open_page: OpenPage, agent_id: str
) -> None:
    """Codes instead of characters that do not print, and wide ones: other agents must stay readable."""
    server, _ = programs.pair(agent_flags={"agent-id": agent_id})
    page = open_page(server)
    assert page.evaluate("document.querySelector('#agents tbody th').innerText.length") >= 60
    table = "document.querySelector('#agents .table')"
    assert page.evaluate(f"{table}.scrollWidth - {table}.clientWidth") <= 0
    assert page.evaluate(LEAVING_NODES) == []


# Nodes whose texts are not cut at their right edge.
LEAVING_NODES = """
[...document.querySelectorAll('#path svg.wide .node')].filter((node) => {
  const [box, cut] = [node.querySelector('rect'), node.querySelector('svg')];
  const edge = box.x.baseVal.value + box.width.baseVal.value;
  return cut.width.baseVal.value > edge || getComputedStyle(cut).overflow !== 'hidden';
}).map((node) => node.textContent)
"""


def test_long_ids_do_not_widen_the_page(programs: Programs, open_page: OpenPage) -> None:
    """256 characters without a space, on a phone."""
    server, agent = programs.pair(agent_flags={"agent-id": "x" * 256})
    for program in (server, agent):
        page = open_page(program, width=NARROW)
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW


# --- without JavaScript, by keyboard, on a phone, dark


def test_without_javascript_the_page_is_complete(
    programs: Programs, open_page: OpenPage, web: HttpEndpoint
) -> None:
    """All facts and rates at the first view; reloading is a link, and can be automatic."""
    server, agent = programs.pair(agent_flags={"agent-id": "agent-without-script"})
    with load(server, web.address):
        page = open_page(server, javascript=False)
        shown = page.document_text()
        for expected in ("agent-without-script", web.address, "iB/s", "every 5 s", "established"):
            assert expected in shown, expected
        assert "No answer since" not in shown
        before = page.loads()
        page.go(f"http://127.0.0.1:{server.admin.port}/?refresh=2")
        page.wait_for_load(before + 1)
        assert "iB/s" in open_page(agent, javascript=False).document_text()


def test_the_page_is_usable_by_keyboard(programs: Programs, open_page: OpenPage) -> None:
    """Skip link first; then sections, sorting and filter, each with a visible focus."""
    server, _ = programs.pair(agent_flags={"agent-id": "a-1"})
    page = open_page(server)
    page.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.press("Enter")
    page.until("document.activeElement.id === 'main'", "the focus is behind the navigation")
    for _ in range(60):
        page.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Connections":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    before = page.loads()
    page.press("Enter")
    page.wait_for_load(before)
    assert page.evaluate("location.search") == "?agents_sort=connections"
    assert page.evaluate("document.querySelector('#agents th[aria-sort]').textContent") == "Connections"


def test_typing_into_the_filter_survives_updates(
    programs: Programs, open_page: OpenPage, endpoint: Callable[..., Endpoint]
) -> None:
    """Text, focus and selection stay; Enter applies it, by a plain form."""
    server, _ = programs.pair()
    target = endpoint(echo)
    tunnels = [
        dial(server, address)
        for address in (target.address, target.address.replace("127.0.0.1", "localhost"))
    ]
    page = open_page(server)
    page.evaluate("document.getElementById('filter').focus()")
    for key in "local":
        page.press(key)
    page.wait_for_updates(2)
    assert page.evaluate("document.activeElement.id + ' ' + document.activeElement.value") == "filter local"
    before = page.loads()
    page.press("Enter")
    page.wait_for_load(before)
    assert "localhost" in page.text("#connections tbody")
    assert "127.0.0.1" not in page.text("#connections tbody")
    assert page.evaluate("document.getElementById('filter').value") == "local"
    for tunnel in tunnels:
        tunnel.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_in_both_colours(
    programs: Programs, open_page: OpenPage, web: HttpEndpoint, scheme: str
) -> None:
    """Nothing is wider than the window, and text has the contrast that WCAG AA requires."""
    server, _ = programs.pair()
    with load(server, web.address):
        page = open_page(server, width=NARROW, scheme=scheme)
        page.until(contains("iB/s", "#path"), "load")
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
        assert page.evaluate("getComputedStyle(document.querySelector('svg.wide')).display") == "none"
        assert page.evaluate(LOWEST_CONTRAST) >= 4.5


@pytest.mark.parametrize("width", [720, 800, 1000, 1280])
def test_no_word_of_a_table_is_broken_on_wider_screens(
    programs: Programs, open_page: OpenPage, web: HttpEndpoint, width: int
) -> None:
    """On a tablet too: states, outcomes, addresses and rates keep their words whole."""
    server, agent = programs.pair(agent_flags={"agent-id": "worker-1.example.com"})
    with pytest.raises(RefusedDialError):
        dial(server, f"127.0.0.1:{free_port()}")
    with load(server, web.address):
        for program in (server, agent):
            page = open_page(program, width=width)
            page.until(contains("iB/s", "#connections"), "load")
            assert page.evaluate(BROKEN_WORDS) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width


# Words of tables that continue on the next line although they are short. Paths of files may break.
BROKEN_WORDS = """
(() => {
  const broken = [];
  for (const cell of document.querySelectorAll('tbody td, tbody th')) {
    if (cell.closest('#certificates')) continue;
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode;
      for (const { 0: word, index } of text.data.matchAll(/[^\\s-]+/g)) {
        const range = document.createRange();
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        const lines = new Set([...range.getClientRects()].map((rect) => Math.round(rect.top)));
        if (word.length < 22 && lines.size > 1) broken.push(word);
      }
    }
  }
  return broken;
})()
"""


# The lowest contrast of a text with the background behind it (WCAG 2, 1.4.3).
LOWEST_CONTRAST = """
(() => {
  const channels = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => {
    const linear = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = channels(colour).slice(0, 3).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      const alpha = channels(colour)[3];
      if (alpha === undefined || alpha === 1) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  let lowest = 21;
  for (const element of document.querySelectorAll('header *, nav *, main *:not(svg, svg *), footer *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.offsetParent) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
    lowest = Math.min(lowest, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return lowest;
})()
"""
