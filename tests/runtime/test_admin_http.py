"""The admin HTTP server, spoken to over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from bootbridge.errors import OperatorError
from bootbridge.runtime import admin_http
from bootbridge.runtime.admin_http import AdminRequest, AdminResponse, AdminServer, Route
from bootbridge.runtime.event_loop import Loop

DEADLINE = 10
Run = Callable[[Coroutine[None, None, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, Loop], ids=["asyncio", "ours"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on either event loop, with a deadline; no task may be left at its end."""

    def runner(scenario: Coroutine[None, None, None]) -> None:
        async def limited() -> None:
            await asyncio.wait_for(scenario, DEADLINE)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with asyncio.Runner(loop_factory=request.param) as loop:
            loop.run(limited())

    return runner


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


async def read_answer(reader: asyncio.StreamReader, *, head_only: bool = False) -> Answer:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    body = b"" if head_only else await reader.readexactly(int(headers["content-length"]))
    return Answer(int(lines[0].split()[1]), headers, body)


async def exchange(port: int, request: bytes, *, host: str = "127.0.0.1") -> tuple[Answer, bytes]:
    """Send raw bytes; give back the answer and all that follows until the server closes."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        answer = await read_answer(reader, head_only=request.startswith(b"HEAD"))
        return answer, await reader.read()
    finally:
        writer.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    """Polls a condition; the test's deadline ends it."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def get(path: str, *, method: str = "GET", headers: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n".encode()


@asynccontextmanager
async def serving(
    routes: Mapping[str, Route], host: str = "127.0.0.1", **options: float
) -> AsyncIterator[int]:
    server = AdminServer(routes, **options)
    await server.start(host, 0)
    try:
        yield server.port
    finally:
        await server.close()


def hello(request: AdminRequest) -> AdminResponse:
    return AdminResponse(f"hello {request.path} {dict(request.query)} {request.host}")


async def later(_request: AdminRequest) -> AdminResponse:
    await asyncio.sleep(0)
    return AdminResponse("later")


def broken(_request: AdminRequest) -> AdminResponse:
    raise RuntimeError("secret detail")


ROUTES: dict[str, Route] = {"/hello": hello, "/later": later, "/broken": broken}


def test_routes_answer_get_and_head(run: Run) -> None:
    """HEAD gives the same headers without the body; queries and the host reach the route."""

    async def scenario() -> None:
        async with serving(ROUTES) as port:
            answer, rest = await exchange(port, get("/hello?verbose&n=3"))
            assert (answer.status, rest) == (200, b"")
            assert answer.body == b"hello /hello {'verbose': '', 'n': '3'} localhost"
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            head, rest = await exchange(port, get("/hello", method="HEAD"))
            assert (head.status, head.headers["content-length"], rest) == (200, "25", b"")
            assert (await exchange(port, get("/later")))[0].body == b"later"

    run(scenario())


def test_a_connection_carries_many_requests(run: Run) -> None:
    """Connections are kept open, and requests sent ahead are answered in order."""

    async def scenario() -> None:
        async with serving(ROUTES) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            request = b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n"
            for _ in range(3):
                writer.write(request)
                assert (await read_answer(reader)).body == b"later"
            writer.write(request + b"GET /hello HTTP/1.1\r\nHost: y\r\n\r\n")
            assert (await read_answer(reader)).body == b"later"
            assert (await read_answer(reader)).body == b"hello /hello {} y"
            writer.transport.abort()

    run(scenario())


def test_a_head_may_arrive_byte_by_byte_and_http_1_0_is_understood(run: Run) -> None:
    """Packets end anywhere; a client without a Host header gets our own address."""

    async def scenario() -> None:
        async with serving(ROUTES) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in b"GET /hello HTTP/1.0\r\n\r\n":
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await read_answer(reader)).body == b"hello /hello {} 127.0.0.1"
            assert await reader.read() == b""
            writer.transport.abort()

    run(scenario())


def test_unknown_paths_methods_and_failures_are_answered_clearly(run: Run) -> None:
    """404, 405 with what is allowed, and 500 without details."""

    async def scenario() -> None:
        async with serving(ROUTES) as port:
            missing, _ = await exchange(port, get("/hello/"))
            assert (missing.status, missing.body) == (404, b"404 page not found\n")
            wrong, _ = await exchange(port, get("/hello", method="DELETE"))
            assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD")
            assert wrong.body == b"method DELETE not allowed: use GET\n"
            failed, _ = await exchange(port, get("/broken"))
            assert failed.status == 500
            assert b"secret" not in failed.body

    run(scenario())


@pytest.mark.parametrize(
    "body_headers",
    ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 99999999\r\n"],
)
def test_a_request_with_a_body_is_answered_and_its_connection_closed(run: Run, body_headers: str) -> None:
    """No route reads a body, so the connection ends without waiting for it."""

    async def scenario() -> None:
        async with serving(ROUTES) as port:
            request = f"POST /hello HTTP/1.1\r\nHost: x\r\n{body_headers}\r\nhello".encode()
            answer, rest = await exchange(port, request)
            assert (answer.status, answer.headers["connection"], rest) == (405, "close", b"")

    run(scenario())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nX: ".ljust(admin_http.HEAD_BYTES_MAX + 1, b"y"), 431),
    ],
)
def test_what_is_not_http_or_too_long_is_refused(run: Run, request_bytes: bytes, status: int) -> None:
    """A TLS hello, a missing Host, a bad header, an endless head: status, then the connection ends."""

    async def scenario() -> None:
        async with serving(ROUTES) as port:
            answer, rest = await exchange(port, request_bytes)
            assert (answer.status, rest) == (status, b"")

    run(scenario())


def test_a_head_that_does_not_arrive_in_time_ends_the_connection(run: Run) -> None:
    """Slow and idle clients do not stay for ever."""

    async def scenario() -> None:
        async with serving(ROUTES, head_seconds=0.05) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /hel")
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.transport.abort()

    run(scenario())


def test_a_client_that_does_not_read_ends_its_own_connection_only(run: Run) -> None:
    """An unread big page times out while other connections are served."""
    page = AdminResponse("x" * 8_000_000)

    async def scenario() -> None:
        server = AdminServer({"/big": lambda _: page, **ROUTES}, timeout_seconds=1.0)
        await server.start("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await exchange(server.port, get("/later")))[0].body == b"later"
        await until(lambda: server.connection_count == 0)
        writer.transport.abort()
        await server.close()

    run(scenario())


def test_at_the_limit_the_connection_that_was_used_least_recently_is_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle connections neither take all file descriptors nor keep a probe out."""
    monkeypatch.setattr(admin_http, "CONNECTIONS_MIN", 8)
    monkeypatch.setattr(admin_http, "CONNECTIONS_MAX", 8)
    per_source = 4

    async def scenario() -> None:
        server = AdminServer(ROUTES)
        await server.start("127.0.0.1", 0)
        scraper, to_scraper = await asyncio.open_connection("127.0.0.1", server.port)
        to_scraper.write(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n")
        await read_answer(scraper)
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(per_source - 1)]
        await until(lambda: server.connection_count == per_source)
        to_scraper.write(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n")
        await read_answer(scraper)
        assert (await exchange(server.port, get("/later")))[0].status == 200
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await idle[0][0].readexactly(1)
        to_scraper.write(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_answer(scraper)).status == 200
        many = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(10 * per_source)]
        assert (await exchange(server.port, get("/later")))[0].status == 200
        await until(lambda: server.connection_count <= per_source)
        for _, writer in [*idle, *many, (scraper, to_scraper)]:
            writer.transport.abort()
        await server.close()

    run(scenario())


def test_a_later_request_must_be_complete_in_time_too(run: Run) -> None:
    """Between requests a connection may be idle much longer than a request may take."""

    async def scenario() -> None:
        async with serving(ROUTES, timeout_seconds=1000, head_seconds=0.05) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await read_answer(reader)).status == 200
                await asyncio.sleep(0.2)
            writer.write(b"GET /lat")
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.transport.abort()

    run(scenario())


@pytest.mark.parametrize(("bind", "dial"), [("", "127.0.0.1"), ("", "::1"), ("::1", "::1"), ("[::1]", "::1")])
def test_an_empty_host_means_both_families(run: Run, bind: str, dial: str) -> None:
    """IPv6 works wherever IPv4 does."""

    async def scenario() -> None:
        async with serving(ROUTES, bind) as port:
            assert (await exchange(port, get("/later"), host=dial))[0].body == b"later"

    run(scenario())


def test_a_port_in_use_names_the_flag_and_the_fix(run: Run) -> None:
    """On a single address and on all of them."""

    async def scenario() -> None:
        async with serving(ROUTES) as port:
            for host in ("127.0.0.1", ""):
                server = AdminServer(ROUTES)
                with pytest.raises(
                    OperatorError, match=f"--admin-port: port {port}: address already in use .choose another"
                ):
                    await server.start(host, port, subject="--admin-port")
                await server.close()

    run(scenario())


def test_an_address_that_is_not_ours_names_the_flag(run: Run) -> None:
    """An address of another machine, and a name that does not exist."""

    async def scenario() -> None:
        with pytest.raises(
            OperatorError, match=r"--health-port: 192\.0\.2\.1: not an address of this machine"
        ):
            await AdminServer(ROUTES).start("192.0.2.1", 0)
        with pytest.raises(OperatorError, match=r"--health-port: cannot listen on no host"):
            await AdminServer(ROUTES).start("no host", 0)

    run(scenario())


def test_close_ends_waiting_connections_and_frees_the_port(run: Run) -> None:
    """After `close` nothing of the server is left, and the port can be taken again."""

    async def scenario() -> None:
        server = AdminServer(ROUTES)
        await server.start("127.0.0.1", 0)
        port = server.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n")
        await read_answer(reader)
        await server.close()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        again = AdminServer(ROUTES)
        await again.start("127.0.0.1", port)
        await again.close()

    run(scenario())
