"""`bootbridge top` in a real terminal, with a real server and agents under load."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.process_endpoints import Endpoint, echo, flood
from tests.support.process_program import OURS, until
from tests.support.process_tunnels import RefusedDialError, Tunnel, dial
from tests.support.tmux import TmuxTerminal
from tests.support.tunnel_programs import Agent, Programs, Server

BLOCK = bytes(50_000)
REFUSED = "127.0.0.1:1"  # port 1: nothing listens there
SAVED = "stty -a"


class LoadedTunnel:
    """A server with two agents; connections transfer until `close`, and one caller does not read."""

    def __init__(self, programs: Programs, endpoint: Callable[..., Endpoint]) -> None:
        self.server = programs.server()
        self.agents = [
            programs.agent(self.server, flags={"agent-id": name, "agent-identifiers": f"host={name}.test"})
            for name in ("agent-east", "agent-west")
        ]
        self.server.wait_for_agents(2)
        self.busy, self.stalled = endpoint(echo), endpoint(flood)
        self._ended = threading.Event()
        self._tunnels: list[Tunnel] = [dial(self.server, self.stalled.address)]
        self._tunnels[0].send(b"x")
        self._threads = [threading.Thread(target=self._transfer) for _ in range(3)]
        for thread in self._threads:
            thread.start()
        with pytest.raises(RefusedDialError):
            dial(self.server, REFUSED)

    def _transfer(self) -> None:
        tunnel = dial(self.server, self.busy.address)
        self._tunnels.append(tunnel)
        try:
            while not self._ended.wait(0.02):
                tunnel.send(BLOCK)
                left = len(BLOCK)
                while left:
                    data = tunnel.recv()
                    if not data:
                        return  # the server was ended
                    left -= len(data)
        except OSError:
            pass

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for tunnel in self._tunnels:
            tunnel.close()


@pytest.fixture
def tunnel(programs: Programs, endpoint: Callable[..., Endpoint]) -> Iterator[LoadedTunnel]:
    tunnel = LoadedTunnel(programs, endpoint)
    yield tunnel
    tunnel.close()


class TopTerminal(TmuxTerminal):
    """Runs `bootbridge top` and compares the terminal before and after."""

    def __init__(self, folder: Path, width: int = 120, height: int = 40) -> None:
        super().__init__(width, height)
        self.folder = folder

    def start(self, url: str) -> None:
        self.run(f"{OURS}/bootbridge top {url}")

    def run(self, top: str) -> None:
        self.type(f"echo line before; {SAVED} > {self.folder}/before")
        self.type(
            f"sh -c 'echo $$ > {self.folder}/pid; exec {top}'; echo exit=$?; {SAVED} > {self.folder}/after"
        )

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def ended(self, code: int = 0) -> str:
        """Waits until it has ended with this code; the terminal must be as it was before."""
        shown = self.until_shows(f"exit={code}")
        until(
            lambda: (self.folder / "after").exists() and (self.folder / "after").read_text(), "stty has run"
        )
        assert (self.folder / "after").read_text() == (self.folder / "before").read_text()
        assert self.is_plain()
        assert "line before" in shown
        assert "STATE" not in shown
        return shown

    def until_fits(self, width: int, height: int) -> None:
        """Waits for a frame of this size: the footer in the last line, the uptime at the end of the first."""

        def fits() -> bool:
            lines = self.lines()
            filled = len(lines) == height and len(lines[0].rstrip()) == width
            return filled and lines[-1].startswith(" q  quit")

        until(fits, f"a frame of {width} x {height}")

    def table(self) -> list[str]:
        """Returns the rows below the tabs, without header and footer."""
        lines = self.lines()
        tabs = next((number for number, line in enumerate(lines) if " 1 Agents" in line), len(lines))
        return [line for line in lines[tabs + 2 : -1] if line.strip()]

    def until_first(self, text: str) -> None:
        """Waits until the first row of the table contains it."""
        until(lambda: text in "".join(self.table()[:1]), f"the first row has {text!r}")

    def until_last(self, text: str) -> None:
        until(lambda: text in "".join(self.table()[-1:]), f"the last row has {text!r}")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[TopTerminal]:
    terminal = TopTerminal(tmp_path)
    yield terminal
    terminal.close()


def address(program: Server | Agent) -> str:
    return f"http://127.0.0.1:{program.admin.port}"


def test_it_shows_agents_traffic_failures_and_what_is_stalled(
    terminal: TopTerminal, tunnel: LoadedTunnel
) -> None:
    terminal.start(address(tunnel.server))
    terminal.until_shows(
        "✓ ready  2 agents  4 connections",
        "1 failed: agent to endpoint 1",
        "agent-east",
        "agent-west",
        "waits for caller to read",
        f"✗ refused      {REFUSED}",
        "connection refused",
    )
    terminal.until_shows("MiB/s")  # the rate of the second sample
    terminal.press("q")
    terminal.ended()


def test_keys_choose_sort_filter_and_pause(terminal: TopTerminal, tunnel: LoadedTunnel) -> None:
    terminal.start(address(tunnel.server))
    terminal.until_shows("Last failed dials")
    terminal.press("2")
    terminal.until_shows("DESTINATION")
    terminal.until_hides("Last failed dials")
    until(lambda: len(terminal.table()) == 4, "all connections are listed")
    terminal.press("/")
    terminal.until_shows("enter esc")
    terminal.press(*tunnel.stalled.address)
    until(lambda: len(terminal.table()) == 1, "one connection is left")
    terminal.until_first(tunnel.stalled.address)
    terminal.press("Enter")
    terminal.until_shows(f"filter: {tunnel.stalled.address}")
    terminal.press("Escape")
    until(lambda: len(terminal.table()) == 4, "the filter is gone")
    while "QUEUED↓" not in terminal.screen():
        before = terminal.screen()
        terminal.press("s")
        until(
            lambda seen=before: terminal.screen().partition("↓")[0] != seen.partition("↓")[0], "it is sorted"
        )
    terminal.until_first(tunnel.stalled.address)
    terminal.press("r")
    terminal.until_shows("QUEUED↑")
    terminal.until_last(tunnel.stalled.address)
    terminal.press("Tab")
    terminal.until_shows("✓ established")
    terminal.press("4")
    terminal.until_hides("✓ established")
    terminal.until_first(REFUSED)
    terminal.press("?")
    terminal.until_shows("reverse the order")
    terminal.press("x", "1", "p")
    terminal.until_shows("PAUSED")
    paused = [line for line in terminal.lines() if line.startswith("traffic")]
    with pytest.raises(RefusedDialError):
        dial(tunnel.server, REFUSED)
    terminal.press("2")
    terminal.until_hides("Last failed dials")
    assert [line for line in terminal.lines() if line.startswith("traffic")] == paused
    terminal.press("p")
    terminal.until_shows("2 failed: agent to endpoint 2")
    terminal.press("q")
    terminal.ended()


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (200, 50), (30, 8)])
def test_it_follows_the_size_of_the_terminal(
    terminal: TopTerminal, tunnel: LoadedTunnel, size: tuple[int, int]
) -> None:
    terminal.start(address(tunnel.server))
    terminal.until_shows("Last failed dials")
    terminal.resize(*size)

    terminal.until_fits(*size)
    assert ("IDENTIFIERS" in terminal.screen()) == (size[0] == 200)
    terminal.resize(120, 40)
    terminal.until_fits(120, 40)
    terminal.press("q")
    terminal.ended()


@pytest.mark.parametrize(
    ("end", "code"), [("C-c", 0), ("q", 0), (signal.SIGTERM, 143), (signal.SIGINT, 0), (signal.SIGHUP, 129)]
)
def test_it_ends_and_leaves_the_terminal_as_it_was(
    terminal: TopTerminal, tunnel: LoadedTunnel, end: str | signal.Signals, code: int
) -> None:
    terminal.start(address(tunnel.server))
    terminal.until_shows("✓ ready")
    assert not terminal.is_plain()
    if isinstance(end, str):
        terminal.press(end)
    else:
        os.kill(terminal.pid, end)
    terminal.ended(code)


def test_an_exception_leaves_the_terminal_as_it_was(terminal: TopTerminal) -> None:
    script = terminal.folder / "broken.py"
    script.write_text(
        "from bootbridge.top.screen import TerminalScreen\n"
        "with TerminalScreen() as screen:\n"
        "    raise RuntimeError('a bug')\n"
    )
    terminal.run(f"{OURS}/python {script}")
    assert "RuntimeError: a bug" in terminal.ended(1)


def test_it_can_be_stopped_and_continued(terminal: TopTerminal, tunnel: LoadedTunnel) -> None:
    """Ctrl-Z gives the terminal back to the shell, `fg` continues."""
    terminal.type(f"{OURS}/bootbridge top {address(tunnel.server)}")
    terminal.until_shows("✓ ready")
    terminal.press("C-z")
    terminal.until_shows("Stopped")
    assert terminal.is_plain()
    terminal.type("fg; echo exit=$?")
    terminal.until_shows("✓ ready")
    assert not terminal.is_plain()
    terminal.press("q")
    terminal.until_shows("exit=0")
    assert terminal.is_plain()


def test_a_lost_server_is_named_and_found_again(terminal: TopTerminal, programs: Programs) -> None:
    server = programs.server()
    terminal.start(address(server))
    terminal.until_shows("✗ not ready  0 agents")
    server.kill()
    terminal.until_shows("connection lost", "connection refused")
    # Keys work meanwhile.
    terminal.press("2")
    terminal.until_shows("no open connections")
    same = {name.replace("_", "-"): port for name, port in (("admin_port", server.admin.port),)}
    again = programs.server(flags=same)
    programs.agent(again)
    terminal.until_shows("✓ ready  1 agent")
    terminal.press("q")
    terminal.ended()


def test_an_agent_shows_its_server_and_endpoints(terminal: TopTerminal, tunnel: LoadedTunnel) -> None:
    terminal.start(address(tunnel.agents[0]))
    terminal.until_shows("proxy-agent", "1 Servers 1", f"127.0.0.1:{tunnel.server.agent_port}")
    terminal.press("q")
    terminal.until_shows("exit=0")


def test_a_hostile_agent_id_is_shown_as_text(terminal: TopTerminal, programs: Programs) -> None:
    """It cannot set the title, move the cursor, or end the program."""
    server = programs.server()
    programs.agent(server, flags={"agent-id": "<b>\x1b[2J\x07q"})
    server.wait_for_agents(1)
    terminal.start(address(server))
    terminal.until_shows("<b>\\x1b[2J\\x07q")
    terminal.press("q")
    terminal.ended()
