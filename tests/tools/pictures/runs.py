"""The runs that pictures are made from. Each yields pictures of what happened: file names and contents."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.tools.pictures.terminal_session import TerminalSession
from tests.tools.pictures.terminal_svg import render

if TYPE_CHECKING:
    from tests.support.chromium import Chromium, Page

COLUMNS = 112
TOP_LINES = 36
LOAD_SECONDS = 15
PAGE_SECONDS = 5
PHONE_WIDTH = 500
PAGE_HEIGHT = 900
# Width, colour scheme, and the last section that is shown.
PAGES = {
    "status-page-light.webp": (1280, "light", "agents"),
    "status-page-dark.webp": (1280, "dark", "agents"),
    "status-page-narrow.webp": (390, "light", "path"),
}
Pictures = Iterator[tuple[str, bytes]]


def demo(folder: Path) -> Pictures:
    """`bootbridge demo`, in network namespaces."""
    command = "bootbridge demo"
    with TerminalSession(folder, columns=COLUMNS) as terminal:
        terminal.run(command)
        yield "demo.svg", _svg(terminal.output(), command)


def lab(folder: Path) -> Pictures:
    """`bootbridge up` in a real cluster; then the agents' port is filtered, and doctor finds it."""
    from bootbridge.lab.images import TUNNEL_IMAGE
    from tests.support.lab import Cluster

    with Cluster.up(folder / "lab") as cluster:
        cluster.start_workloads()
        on_bootstrap = cluster.lab.namespaces("bootstrap")
        with TerminalSession(folder, columns=COLUMNS, where=on_bootstrap.command) as terminal:
            command = f"bootbridge up --image {TUNNEL_IMAGE}"
            terminal.run(command, seconds=600)
            yield "up.svg", _svg(terminal.output(), command)
        on_bootstrap.run_checked("nft", "-f", "-", input=FILTER_AGENT_PORT)
        inside = f"--namespace={cluster.plan.namespace}"
        cluster.kubectl("delete", "pods", "--all", inside, "--grace-period=1", seconds=120)
        agents = ("logs", inside, f"--selector=app={cluster.plan.daemonset_name}", "--tail=-1")
        cluster.until(
            lambda: "server not reached" in cluster.kubectl(*agents, check=False).stdout,
            "the new agents have tried to connect",
        )
        with TerminalSession(folder, columns=COLUMNS, where=on_bootstrap.command) as terminal:
            command = "bootbridge doctor"
            terminal.run(command)
            yield "doctor.svg", _svg(terminal.output(), command)


# A firewall that drops packets to the agents' port. The rule goes away with the lab's node.
FILTER_AGENT_PORT = b"""
table inet firewall {
  chain input {
    type filter hook input priority 0;
    iifname != "lo" tcp dport 8091 drop
  }
}
"""


def tunnel(folder: Path) -> Pictures:
    """A server with three agents under load: `bootbridge top`, and the status page."""
    from tests.support.chromium import Chromium
    from tests.tools.pictures.loaded_tunnel import loaded_tunnel

    with loaded_tunnel(folder) as running:
        with running.entered():
            terminal = TerminalSession(folder, columns=COLUMNS, lines=TOP_LINES)
            browser = Chromium(folder)
        with terminal, browser:
            command = "bootbridge top"
            terminal.type(command)
            terminal.wait_for(lambda screen: "waits for caller" in screen, "the stalled caller is shown", 60)
            time.sleep(LOAD_SECONDS)  # so that rates and graphs have something to show
            yield "top.svg", _svg(terminal.screen(), command)
            terminal.press("q")
            for name, (width, scheme, last) in PAGES.items():
                yield name, _page(browser, running.admin(), width, scheme, last)


def _page(browser: Chromium, url: str, width: int, scheme: str, last: str) -> bytes:
    """Returns the page from its top to the end of a section."""
    phone = width <= PHONE_WIDTH

    def prepare(page: Page) -> None:
        page.resize(width, PAGE_HEIGHT, scale=2 if phone else 1, mobile=phone)
        page.prefer(scheme)

    page = browser.open(url, prepare)
    time.sleep(PAGE_SECONDS)  # it updates every second, and shows rates from the second answer on
    bottom = page.evaluate(f"document.getElementById({last!r}).getBoundingClientRect().bottom + scrollY + 20")
    clip = {"x": 0, "y": 0, "width": width, "height": bottom, "scale": 1}
    shot = page.call(
        "Page.captureScreenshot", format="webp", quality=80, clip=clip, captureBeyondViewport=True
    )
    return base64.b64decode(shot["data"])


def _svg(screen: str, command: str) -> bytes:
    return render(screen, title=command, columns=COLUMNS).encode()
