"""A stream reads at most ``read_max`` bytes in one turn, so that its owner decides how long others wait."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from pathlib import Path

import pytest

from bootbridge.runtime.byte_stream import PlainStream
from bootbridge.runtime.event_loop import Loop, running_loop
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.tls_files import TlsFiles
from bootbridge.runtime.tls_stream import TlsStream
from bootbridge.trust.authority import Authority

DEADLINE = 10
SENT = 200_000
LIMIT = 20_000
# A TLS record of the turn before may be complete only now.
RECORD = 16_384


class Sizes:
    """Records how much each turn reads."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.all = asyncio.Event()

    def on_bytes(self, data: memoryview) -> None:
        self.turns.append(len(data))
        if sum(self.turns) == SENT:
            self.all.set()

    def on_eof(self, gone: bool) -> None: ...
    def on_drained(self) -> None: ...
    def on_lost(self, reason: str) -> None: ...


def run(scenario: Coroutine[None, None, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario, DEADLINE)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(limited())


@pytest.mark.parametrize("limited", [False, True])
def test_a_plain_stream_reads_what_its_owner_allows(limited: bool) -> None:
    near, far = socket.socketpair()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SENT)
    near.setblocking(False)

    async def scenario() -> None:
        sizes = Sizes()
        stream = PlainStream(Pump(running_loop()), near)
        if limited:
            stream.read_max = LIMIT
        far.sendall(bytes(SENT))
        stream.start(sizes)
        await sizes.all.wait()
        assert (max(sizes.turns) <= LIMIT) == limited

    run(scenario())
    near.close()
    far.close()


@pytest.mark.parametrize("limited", [False, True])
def test_a_tls_stream_reads_what_its_owner_allows(tmp_path: Path, limited: bool) -> None:
    authority = Authority.create("root")
    ca = str(authority.write(tmp_path))
    cert, key = authority.issue_server(["localhost"]).write(tmp_path, "server")
    client_cert, client_key = authority.issue_client("agent").write(tmp_path, "client")
    near, far = socket.socketpair()
    for sock in (near, far):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SENT)
        sock.setblocking(False)

    async def scenario() -> None:
        sizes = Sizes()
        pump = Pump(running_loop())
        ready: list[TlsStream] = []
        failures: list[str] = []
        both = asyncio.Event()

        def on_ready(stream: TlsStream) -> None:
            ready.append(stream)
            if len(ready) == 2:
                both.set()

        server = TlsStream(
            pump,
            near,
            TlsFiles.agent_listener(str(cert), str(key), ca).context(),
            ready=on_ready,
            failed=failures.append,
        )
        client = TlsStream(
            pump,
            far,
            TlsFiles.agent_client(ca, str(client_cert), str(client_key)).context(),
            server_name="localhost",
            ready=on_ready,
            failed=failures.append,
        )
        pump.end_turn()
        await both.wait()
        assert failures == []
        if limited:
            server.read_max = LIMIT
        client.write(bytes(SENT))
        client.flush()
        server.start(sizes)
        await sizes.all.wait()
        assert (max(sizes.turns) <= LIMIT + RECORD) == limited

    run(scenario())
