"""Renewed certificates on real sockets: new handshakes use the new files, running connections go on."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bootbridge.runtime.event_loop import Loop, running_loop
from bootbridge.runtime.listeners import Listener, tcp_socket
from bootbridge.runtime.pump import Pump
from bootbridge.runtime.tls_files import TlsFiles
from bootbridge.runtime.tls_stream import TlsStream
from bootbridge.trust.authority import Authority

DEADLINE = 10
Run = Callable[[Awaitable[None]], None]


@pytest.fixture
def run() -> Run:
    """Run a coroutine on our event loop, with a deadline."""

    def runner(main: Awaitable[None]) -> None:
        async def limited() -> None:
            await asyncio.wait_for(main, DEADLINE)

        with asyncio.Runner(loop_factory=Loop) as loop:
            loop.run(limited())

    return runner


class Connection:
    """The client end of an echo connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def echo(self, text: bytes) -> bytes:
        self._writer.write(text)
        await self._writer.drain()
        return await self._reader.readexactly(len(text))

    def server_serial(self) -> str:
        return self._writer.get_extra_info("peercert")["serialNumber"]

    def close(self) -> None:
        self._writer.transport.abort()


class Echo:
    """Sends back what it receives."""

    def __init__(self, stream: TlsStream) -> None:
        self._stream = stream

    def on_bytes(self, data: memoryview) -> None:
        self._stream.write(data)

    def on_eof(self, gone: bool) -> None:
        self._stream.close()

    def on_drained(self) -> None: ...
    def on_lost(self, reason: str) -> None: ...


@asynccontextmanager
async def echo_server(tls: TlsFiles) -> AsyncIterator[int]:
    """An echo server on loopback whose handshakes follow the files, as our listeners' do."""
    pump = Pump(running_loop())

    def accept(sock: socket.socket) -> None:
        TlsStream(
            pump,
            sock,
            tls.context(),
            ready=lambda stream: stream.start(Echo(stream)),
            failed=lambda reason: None,
        )

    listener = Listener(pump, tcp_socket("127.0.0.1", 0, "--agent-port"), accept)
    try:
        yield listener.port
    finally:
        listener.close()


async def connect(port: int, tls: TlsFiles, name: str) -> Connection:
    streams = await asyncio.open_connection("127.0.0.1", port, ssl=tls.context(), server_hostname=name)
    return Connection(*streams)


async def refused(port: int, tls: TlsFiles, name: str) -> bool:
    """Whether the server turns this client away; in TLS 1.3 that shows with the first byte read."""
    try:
        connection = await connect(port, tls, name)
        await connection.echo(b"hello")
    except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
        return True
    connection.close()
    return False


def listener(directory: Path, authority: Authority) -> TlsFiles:
    """Writes the listener's files anew, issued by this authority."""
    cert, key = authority.issue_server(["localhost", "127.0.0.1"]).write(directory, "server")
    return TlsFiles.agent_listener(str(cert), str(key), str(authority.write(directory)))


def client(directory: Path, authority: Authority) -> TlsFiles:
    directory.mkdir(exist_ok=True)
    cert, key = authority.issue_client("agent").write(directory, "client")
    return TlsFiles.agent_client(str(authority.write(directory)), str(cert), str(key))


# An address as server name means that the client sends no SNI.
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_renewed_certificate_is_used_by_new_handshakes_only(tmp_path: Path, run: Run, name: str) -> None:
    """The old connection lives on with its certificate while a new one gets the new certificate."""
    authority = Authority.create("root")

    async def scenario() -> None:
        agent = client(tmp_path / "agent", authority)
        async with echo_server(listener(tmp_path, authority)) as port:
            before = await connect(port, agent, name)
            authority.issue_server(["localhost", "127.0.0.1"]).write(tmp_path, "server")
            after = await connect(port, agent, name)
            assert await before.echo(b"still here") == b"still here"
            assert await after.echo(b"new") == b"new"
            assert before.server_serial() != after.server_serial()
            before.close()
            after.close()

    run(scenario())


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_renewed_ca_decides_about_new_clients_only(tmp_path: Path, run: Run, name: str) -> None:
    """After CA, certificate and key changed, old clients are refused and earlier connections go on."""
    old, new = Authority.create("old"), Authority.create("new")

    async def scenario() -> None:
        old_agent, new_agent = client(tmp_path / "old", old), client(tmp_path / "new", new)
        async with echo_server(listener(tmp_path, old)) as port:
            before = await connect(port, old_agent, name)
            assert await refused(port, new_agent, name)
            listener(tmp_path, new)
            after = await connect(port, new_agent, name)
            assert await after.echo(b"new") == b"new"
            assert await refused(port, old_agent, name)
            assert await before.echo(b"still here") == b"still here"
            before.close()
            after.close()

    run(scenario())


def test_only_the_client_ca_changed_and_still_decides(tmp_path: Path, run: Run) -> None:
    """The CA alone is taken over too: the server's own certificate is the same as before."""
    servers, old, new = Authority.create("servers"), Authority.create("old"), Authority.create("new")

    def agent_of(authority: Authority, name: str) -> TlsFiles:
        cert, key = authority.issue_client("agent").write(tmp_path, name)
        return TlsFiles.agent_client(str(servers.write(tmp_path, "servers")), str(cert), str(key))

    async def scenario() -> None:
        cert, key = servers.issue_server(["localhost"]).write(tmp_path, "server")
        tls = TlsFiles.agent_listener(str(cert), str(key), str(old.write(tmp_path, "clients")))
        old_agent, new_agent = agent_of(old, "old"), agent_of(new, "new")
        async with echo_server(tls) as port:
            before = await connect(port, old_agent, "localhost")
            assert await refused(port, new_agent, "localhost")
            new.write(tmp_path, "clients")
            assert not await refused(port, new_agent, "localhost")
            assert await refused(port, old_agent, "localhost")
            assert await before.echo(b"still here") == b"still here"
            before.close()

    run(scenario())


def test_an_agents_own_renewed_files_are_used_for_its_next_connection(tmp_path: Path, run: Run) -> None:
    """The agent reads its certificate and CA again before it dials again."""
    old, new = Authority.create("old"), Authority.create("new")

    async def scenario() -> None:
        agent = client(tmp_path / "agent", old)
        (tmp_path / "new").mkdir()
        async with echo_server(listener(tmp_path / "new", new)) as port:
            assert await refused(port, agent, "localhost")
            client(tmp_path / "agent", new)
            assert not await refused(port, agent, "localhost")

    run(scenario())
