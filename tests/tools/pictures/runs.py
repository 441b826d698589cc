"""The runs that pictures are made from. Each yields pictures of what happened: file names and contents."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bootbridge.trust.authority import Authority
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


# Commands that need neither a cluster nor a tunnel, for each picture; one after the other in one directory.
FILE_COMMANDS = {
    "render.svg": ["bootbridge render --output tunnel --install-config install-config.yaml"],
    "inject.svg": ["bootbridge inject bootstrap.ign", "bootbridge check bootstrap.ign"],
    "firewall.svg": [
        "bootbridge firewall show --install-config install-config.yaml --infra-id test-x7k2p",
        "bootbridge firewall create --install-config install-config.yaml --infra-id test-x7k2p",
    ],
    "certs.svg": [
        "bootbridge certs create --server-name 192.0.2.10 --agent worker-1=192.0.2.11,10.128.2.0/23",
        "bootbridge certs show",
    ],
    "image.svg": ["bootbridge image build --plain"],
    "node.svg": ["bootbridge node secret --out init-secret", "bootbridge node status --config node.yaml"],
}
INSTANCE_YAML = """\
self: {name: node2, role: worker, addresses: [192.0.2.12]}
peers: [{name: node1, role: control-plane, addresses: [192.0.2.10]}]
"""


def files(folder: Path) -> Pictures:
    """What is written before a bootstrap: files, certificates, an image, secrets."""
    from tests.support.bootkube_scripts import script
    from tests.support.ignition_documents import INSTALL_CONFIG, compact, document

    (folder / "install-config.yaml").write_text(INSTALL_CONFIG)
    (folder / "bootstrap.ign").write_bytes(compact(document(script("4.22"))))
    (folder / "node.yaml").write_text(json.dumps(_node_configuration(folder)))
    (folder / "instance.yaml").write_text(INSTANCE_YAML)
    for name, commands in FILE_COMMANDS.items():
        with TerminalSession(folder, columns=COLUMNS) as terminal:
            for command in commands:
                terminal.run(command, seconds=300)
            yield name, _svg(terminal.output(), commands[0])


def _node_configuration(folder: Path) -> dict[str, object]:
    authority = Authority.create("instances")
    authority.write(folder, "ca")
    authority.issue_server(["node2"]).write(folder, "node2")
    return {
        "metadata": {"static": {"file": str(folder / "instance.yaml")}},
        "evidence": {"x509": {"certificate": str(folder / "node2.crt"), "key": str(folder / "node2.key")}},
        "joinService": {"evidence": {"x509": {"cas": (folder / "ca.crt").read_text()}}},
    }


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
        yield _picture("status.svg", folder, "bootbridge status", on_bootstrap.command)
        yield _picture("lab.svg", folder, "bootbridge lab status --dir lab")
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
        on_bootstrap.run_checked("nft", "delete", "table", "inet", "firewall")
        yield _picture("gather.svg", folder, "bootbridge gather", on_bootstrap.command)
        yield _picture("down.svg", folder, "bootbridge down", on_bootstrap.command, seconds=600)


def _picture(
    name: str,
    folder: Path,
    command: str,
    where: Callable[[list[str]], list[str]] = lambda argv: argv,
    seconds: float = 120,
) -> tuple[str, bytes]:
    with TerminalSession(folder, columns=COLUMNS, where=where) as terminal:
        terminal.run(command, seconds)
        return name, _svg(terminal.output(), command)


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
    from tests.tools.pictures.loaded_tunnel import REFUSED, loaded_tunnel

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
        with running.entered(), TerminalSession(folder, columns=COLUMNS) as terminal:
            command = f"bootbridge dial --socket proxy.sock {REFUSED}"
            terminal.run(command)
            yield "dial.svg", _svg(terminal.output(), command)


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
