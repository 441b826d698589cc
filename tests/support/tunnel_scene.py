"""A server with several agents under load, a stalled connection and failing dials: for pictures of the page.

    with TunnelScene(folder) as scene:
        scene.server.admin.port, scene.agents[0].admin.port

`python -m tests.support.tunnel_scene FOLDER` writes screenshots of both pages to FOLDER. With `--serve` it
prints the addresses and runs until Enter is pressed.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.support.chromium import Chromium, Page
from tests.support.process_endpoints import Endpoint, HttpEndpoint, NonReader
from tests.support.process_program import free_port, until
from tests.support.process_tunnels import ConnectTunnel, RefusedDialError, http_request
from tests.support.tunnel_programs import Agent, Programs, Server

NODES = ("master-0", "worker-0", "worker-1", "worker-2")
# Bytes of an answer and seconds between two requests, of each caller.
LOADS = ((2_000, 0.05), (40_000, 0.05), (400_000, 0.1), (1_500_000, 0.2), (300, 0.5))
FAILURE_SECONDS = 4.0
SETTLED_BYTES = 5_000_000


class TunnelScene:
    """All programs on loopback; the names of nodes are only names."""

    def __init__(self, folder: Path, nodes: tuple[str, ...] = NODES) -> None:
        self._programs = Programs(folder)
        self._stopped = threading.Event()
        self._stalls = self._failures = 0
        self._threads: list[threading.Thread] = []
        self._endpoints: list[HttpEndpoint] = []
        self._non_reader = NonReader()
        self._stalling = Endpoint(self._non_reader)
        self.server: Server = self._programs.server(flags={"proxy-strategies": "destHost,default"})
        # An address of loopback for each node, so that the path has several destinations on several agents.
        self._hosts = [f"127.0.0.{number + 2}" for number in range(len(nodes))]
        self.agents: list[Agent] = [
            self._programs.agent(
                self.server, flags={"agent-id": node, "agent-identifiers": f"host={node}&ipv4={host}"}
            )
            for node, host in zip(nodes, self._hosts, strict=True)
        ]
        self.server.wait_for_agents(len(nodes))

    def __enter__(self) -> TunnelScene:
        for position, (size, pause) in enumerate(LOADS):
            endpoint = HttpEndpoint(self._hosts[position % len(self._hosts)])
            self._endpoints.append(endpoint)
            self._start(self._load, endpoint.address, size, pause)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._non_reader.released.set()
        for thread in self._threads:
            thread.join(10)
        for endpoint in (*self._endpoints, self._stalling):
            endpoint.close()
        self._programs.close()

    def stall(self) -> None:
        """Starts a caller that sends to an endpoint that does not read."""
        self._stalls = 1
        self._start(self._send_until_full)

    def fail(self) -> None:
        """Starts a caller whose dials are refused, again and again."""
        self._failures = 1
        self._start(self._dial_a_closed_port)

    def settle(self) -> None:
        """Waits until the load, and stall and failure if they were started, are in the status."""
        until(lambda: self._shows(self.server.admin.status()), "the scene is complete")

    def _shows(self, status: dict[str, Any]) -> bool:
        waiting = [row for row in status["connections"] if row["waiting_for"] == "endpoint to read"]
        return (
            status["bytes"]["to_frontend"] > SETTLED_BYTES
            and len(waiting) >= self._stalls
            and len(status["recent_failures"]) >= self._failures
        )

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _load(self, address: str, size: int, pause: float) -> None:
        tunnel = ConnectTunnel.dial(self.server, address)
        while not self._stopped.wait(pause):
            http_request(tunnel, f"/bytes/{size}")
        tunnel.close()

    def _send_until_full(self) -> None:
        tunnel = ConnectTunnel.dial(self.server, self._stalling.address)
        tunnel.sock.settimeout(0.5)
        try:
            while not self._stopped.is_set():
                tunnel.send(bytes(65536))
        except TimeoutError:
            self._stopped.wait()
        tunnel.close()

    def _dial_a_closed_port(self) -> None:
        address = f"{self._hosts[1]}:{free_port()}"
        while True:
            try:
                ConnectTunnel.dial(self.server, address).close()
            except RefusedDialError:
                pass
            if self._stopped.wait(FAILURE_SECONDS):
                return


# --- screenshots


def screenshots(scene: TunnelScene, folder: Path) -> None:
    """Writes the pages in both colours and on a phone."""
    pages = {"server": scene.server.admin.port, "agent": scene.agents[0].admin.port}
    with Chromium(folder) as browser:
        for name, port in pages.items():
            for kind, width, scheme in (
                ("light", 1280, "light"),
                ("dark", 1280, "dark"),
                ("narrow", 360, "light"),
            ):

                def prepare(page: Page, width: int = width, scheme: str = scheme) -> None:
                    page.resize(width, 900, scale=2, mobile=width < 500)
                    page.prefer(scheme)

                page = browser.open(f"http://127.0.0.1:{port}/", prepare)
                page.wait_for_updates(3)
                page.screenshot(folder / f"{name}-{kind}.png")
                page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, TunnelScene(Path(scratch)) as scene:
        scene.fail()
        scene.stall()
        scene.settle()
        if arguments.serve:
            for program in (scene.server, *scene.agents):
                print(f"{program.title}: http://127.0.0.1:{program.admin.port}/")
            input("Enter ends it. ")
        else:
            screenshots(scene, arguments.folder)


if __name__ == "__main__":
    main()
