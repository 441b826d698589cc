"""A program whose log is not read serves as before, and reports what was lost."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from bootbridge.runtime.line_writer import QUEUE_BYTES_MAX
from tests.support.process_endpoints import Endpoint, echo
from tests.support.process_program import until
from tests.support.process_tunnels import RefusedDialError, dial, receive
from tests.support.tunnel_programs import Agent, Programs, Server

Endpoints = Callable[..., Endpoint]
# No name has so long a label, so the dial fails at once. Server and agent log the address.
LONG_ADDRESS = "a" * 480 + ":1"


class UnreadPipe:
    """A pipe that is read only after `read_on`."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 4096)
        self.text = ""

    def fill(self) -> None:
        """Leaves no room. Through another open file: the program shares ours, and must not become
        non-blocking."""
        with open(f"/proc/self/fd/{self.writer}", "wb", buffering=0, opener=_non_blocking) as writer:
            while writer.write(b"-" * 4096):
                pass

    def read_on(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while data := os.read(self.reader, 65536):
            self.text += data.decode()


def _non_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


@pytest.fixture
def pipe() -> Iterator[UnreadPipe]:
    pipe = UnreadPipe()
    yield pipe
    os.close(pipe.writer)


@pytest.mark.parametrize("stuck", ["server", "agent"])
def test_a_log_that_is_not_read_stops_nothing(
    programs: Programs, endpoint: Endpoints, pipe: UnreadPipe, stuck: str
) -> None:
    """Traffic, new connections and /healthz continue; the lost lines are counted in /metrics and, when the
    reader returns, in the log."""
    server: Server = programs.server(stderr=pipe.writer) if stuck == "server" else programs.server()
    agent: Agent = programs.agent(server, stderr=pipe.writer) if stuck == "agent" else programs.agent(server)
    server.wait_until_ready()
    program = server if stuck == "server" else agent
    address = endpoint(echo).address
    tunnel = dial(server, address)
    pipe.fill()
    for _ in range(QUEUE_BYTES_MAX // len(LONG_ADDRESS) + 10):
        with suppress(RefusedDialError):
            dial(server, LONG_ADDRESS)
    assert program.health.get("/healthz") == (200, "ok")
    tunnel.send(b"open before")
    assert receive(tunnel, 11) == b"open before"
    later = dial(server, address)
    later.send(b"opened since")
    assert receive(later, 12) == b"opened since"
    dropped = program.metric("log_lines_dropped_total")
    assert dropped > 0
    pipe.read_on()
    until(lambda: "log lines dropped" in pipe.text, "the reader learns of the lost lines")
    (count,) = re.findall(r"WARNING \w+: log lines dropped count=(\d+)", pipe.text)
    assert int(count) == dropped
    assert program.metric("log_lines_dropped_total") == dropped
    tunnel.close()
    later.close()
    program.terminate()
    assert program.wait() == 0
    until(lambda: "stopping" in pipe.text, "later lines follow")


def test_a_program_exits_although_its_log_is_not_read(programs: Programs, pipe: UnreadPipe) -> None:
    server = programs.server(stderr=pipe.writer)
    pipe.fill()
    server.terminate()
    assert server.wait() == 0


def test_a_log_file_that_is_not_read_stops_nothing(programs: Programs) -> None:
    """`--log-file` may be a named pipe."""
    fifo = programs.folder / "log"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        server = programs.server(flags={"logtostderr": False, "log-file": str(fifo)})
        writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while os.write(writer, b"-" * 4096):
                pass
        with pytest.raises(RefusedDialError):
            dial(server, "192.0.2.1:80")  # logged
        assert server.health.get("/healthz") == (200, "ok")
        os.close(writer)
    finally:
        os.close(reader)
