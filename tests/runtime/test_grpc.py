"""gRPC calls between our own two ends, over real sockets: what callers and handlers may rely on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest

from bootbridge.runtime.grpc import GrpcClient, Handler, RpcError, Send, serve
from bootbridge.runtime.grpc.connection import GrpcConnection
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.frames import PREFACE
from bootbridge.wire.hpack_headers import Headers
from tests.support.fake_clock import pass_time
from tests.support.wire_peers import Caller as RawCall

KIB, MIB = 1024, 1024 * 1024
PATIENCE = 20.0


class Site:
    """A service on loopback, and how its connections ended."""

    def __init__(self, handlers: dict[str, Handler], options: dict[str, Any]) -> None:
        self.handlers = handlers
        self.options = options
        self.port = 0
        self.serving: list[asyncio.Task[Any] | None] = []
        self.served = asyncio.Semaphore(0)

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        try:
            await serve(reader, writer, self.handlers, **self.options)
        finally:
            self.served.release()

    @asynccontextmanager
    async def caller(self, **options: float) -> AsyncIterator[GrpcClient]:
        async with GrpcClient(*await self.dialled(), **options) as caller:
            yield caller

    async def dialled(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def connection_ended(self) -> None:
        await asyncio.wait_for(self.served.acquire(), PATIENCE)


@asynccontextmanager
async def site(handlers: dict[str, Handler], **options: Any) -> AsyncIterator[Site]:
    """Afterwards no connection is left, and no handler."""
    place = Site(handlers, options)
    server = await asyncio.start_server(place.on_connection, "127.0.0.1", 0)
    place.port = server.sockets[0].getsockname()[1]
    try:
        yield place
    finally:
        server.close()
        for task in place.serving:
            await asyncio.wait_for(asyncio.wait({task}), PATIENCE)
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("calls: h")] == []


async def echo(body: bytes, send: Send) -> None:
    await send(body)


class Gate:
    """A handler that answers once, and then stays until it is let go or cancelled."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, body: bytes, send: Send) -> None:
        self.entered.set()
        await send(b"entered")
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        await send(b"through")

    async def is_cancelled(self) -> None:
        await asyncio.wait_for(self.cancelled.wait(), PATIENCE)


# --- answers


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 3 * MIB, grpc.MESSAGE_BYTES_MAX])
async def test_a_call_is_answered(size: int) -> None:
    """All sizes up to gRPC's own limit."""
    async with site({"/echo": echo}) as place, place.caller() as caller:
        assert await caller.unary("/echo", bytes(size), PATIENCE) == bytes(size)


async def test_answers_of_a_stream_come_when_they_are_sent() -> None:
    gate = Gate()
    async with site({"/gate": gate}) as place, place.caller() as caller:
        answers = caller.stream("/gate", b"")
        assert await anext(answers) == b"entered"
        gate.open.set()
        assert [answer async for answer in answers] == [b"through"]


async def test_many_calls_go_on_at_once_without_mixing() -> None:
    async def count(body: bytes, send: Send) -> None:
        for number in range(20):
            await send(body * 5000 + b"%d" % number)

    async def call(caller: GrpcClient, body: bytes) -> bool:
        got = [answer async for answer in caller.stream("/count", body)]
        return got == [body * 5000 + b"%d" % number for number in range(20)]

    async with site({"/count": count}) as place, place.caller() as caller:
        calls = (call(caller, b"%02d" % number) for number in range(16))
        assert all(await asyncio.gather(*calls))


async def test_a_handler_waits_while_its_answers_are_not_taken() -> None:
    """Memory is bounded on both ends, and a call beside it goes on meanwhile."""
    sent = 0

    async def flood(body: bytes, send: Send) -> None:
        nonlocal sent
        for _ in range(200):
            await send(bytes(256 * KIB))
            sent += 1

    async with site({"/flood": flood, "/echo": echo}) as place, place.caller() as caller:
        answers = caller.stream("/flood", b"")
        assert len(await anext(answers)) == 256 * KIB
        for _ in range(200):
            await caller.unary("/echo", b"", PATIENCE)
        assert sent < 20
        assert len([answer async for answer in answers]) == 199


# --- failures


@pytest.mark.parametrize("code", range(1, 17))
@pytest.mark.parametrize("answered", [False, True], ids=["at once", "after an answer"])
async def test_a_handlers_refusal_is_the_callers(code: int, answered: bool) -> None:
    async def refuse(body: bytes, send: Send) -> None:
        if answered:
            await send(b"x")
        raise RpcError(code, "not today: 100 % “sure”")

    async with site({"/refuse": refuse}) as place, place.caller() as caller:
        with pytest.raises(RpcError, match="not today: 100 % “sure”") as caught:
            await caller.unary("/refuse", b"", PATIENCE)
        assert caught.value.code == code
        assert str(caught.value).startswith(grpc.STATUS_NAMES[code])


async def test_a_bug_in_a_handler_is_logged_and_hidden_from_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def buggy(body: bytes, send: Send) -> None:
        raise ValueError("the disk key is 1234")

    async with site({"/buggy": buggy}) as place, place.caller() as caller:
        with pytest.raises(RpcError) as caught:
            await caller.unary("/buggy", b"", PATIENCE)
    assert caught.value.code == grpc.INTERNAL
    assert "1234" not in str(caught.value)
    assert [record.fields["reason"] for record in caplog.records] == ["ValueError('the disk key is 1234')"]  # type: ignore[attr-defined]


async def test_a_timeout_inside_a_handler_is_not_the_callers_deadline() -> None:
    async def late(body: bytes, send: Send) -> None:
        raise TimeoutError

    async with site({"/late": late}) as place, place.caller() as caller:
        with pytest.raises(RpcError) as caught:
            await caller.unary("/late", b"", PATIENCE)
        assert caught.value.code == grpc.INTERNAL


async def test_a_method_that_is_not_there_is_unimplemented() -> None:
    async with site({"/echo": echo}) as place, place.caller() as caller:
        with pytest.raises(RpcError, match="/nothing") as caught:
            await caller.unary("/nothing", b"", PATIENCE)
        assert caught.value.code == grpc.UNIMPLEMENTED


@pytest.mark.parametrize("answers", [0, 2])
async def test_a_unary_call_has_exactly_one_answer(answers: int) -> None:
    async def some(body: bytes, send: Send) -> None:
        for _ in range(answers):
            await send(b"x")

    async with site({"/some": some}) as place, place.caller() as caller:
        with pytest.raises(RpcError) as caught:
            await caller.unary("/some", b"", PATIENCE)
        assert caught.value.code == grpc.INTERNAL


async def test_a_message_that_is_too_large_fails_alone() -> None:
    """In either direction; the connection goes on."""

    async def huge(body: bytes, send: Send) -> None:
        await send(bytes(grpc.MESSAGE_BYTES_MAX + 1))

    async with site({"/huge": huge, "/echo": echo}) as place, place.caller() as caller:
        for path, body in (("/echo", bytes(grpc.MESSAGE_BYTES_MAX + 1)), ("/huge", b"")):
            with pytest.raises(RpcError) as caught:
                await caller.unary(path, body, PATIENCE)
            assert caught.value.code == grpc.RESOURCE_EXHAUSTED
        assert await caller.unary("/echo", b"again", PATIENCE) == b"again"
        assert len(place.serving) == 1


# --- time


async def test_a_call_that_takes_too_long_fails_and_its_handler_is_cancelled() -> None:
    gate = Gate()
    async with site({"/gate": gate, "/echo": echo}) as place, place.caller() as caller:
        with pytest.raises(RpcError) as caught:
            await caller.unary("/gate", b"", 0.05)
        assert caught.value.code == grpc.DEADLINE_EXCEEDED
        await gate.is_cancelled()
        assert await caller.unary("/echo", b"again", PATIENCE) == b"again"


async def test_a_deadline_holds_on_the_server_although_the_caller_forgets_it() -> None:
    gate = Gate()
    async with site({"/gate": gate}) as place, raw_connection(place) as connection:
        call = raw_call(connection, "/gate", (("grpc-timeout", "30m"),))
        await gate.is_cancelled()
        await until(lambda: call.ended)
        assert call.status[0] == grpc.DEADLINE_EXCEEDED


async def test_closing_a_stream_of_answers_cancels_the_call() -> None:
    gate = Gate()
    async with site({"/gate": gate, "/echo": echo}) as place, place.caller() as caller:
        async with aclosing(caller.stream("/gate", b"")) as answers:
            assert await anext(answers) == b"entered"
        await gate.is_cancelled()
        assert await caller.unary("/echo", b"again", PATIENCE) == b"again"


async def test_cancelling_the_waiting_task_cancels_the_call() -> None:
    gate = Gate()
    async with site({"/gate": gate}) as place, place.caller() as caller:
        waiting = asyncio.ensure_future(caller.unary("/gate", b"", PATIENCE))
        await gate.entered.wait()
        waiting.cancel()
        await gate.is_cancelled()


@pytest.mark.parametrize("side", ["caller", "server"])
async def test_a_peer_that_fell_silent_is_given_up(side: str) -> None:
    """It may have lost its power: no FIN will ever come."""
    gate = Gate()
    fast = {"keepalive_seconds": 0.05, "answer_seconds": 0.05}
    async with AsyncExitStack() as stack:
        # The kernel accepts connections to it; no program reads or closes them.
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        place = await stack.enter_async_context(site({"/gate": gate}, **fast))
        if side == "caller":
            place.port = silent.getsockname()[1]
            async with place.caller(**fast) as caller:
                with pytest.raises(RpcError, match="keepalive timed out") as caught:
                    await caller.unary("/gate", b"", PATIENCE)
            assert caught.value.code == grpc.UNAVAILABLE
        else:
            _, writer = await place.dialled()
            writer.write(await first_words("/gate"))
            await gate.is_cancelled()
            await place.connection_ended()
            writer.close()


async def test_a_quiet_call_lasts_as_long_as_pings_are_answered() -> None:
    gate = Gate()
    async with site({"/gate": gate}) as place, place.caller(keepalive_seconds=0.01) as caller:
        pongs = asyncio.Semaphore(0)
        caller._connection.http2.on_pong = pongs.release
        answers = caller.stream("/gate", b"")
        assert await anext(answers) == b"entered"
        for _ in range(3):
            await asyncio.wait_for(pongs.acquire(), PATIENCE)
        gate.open.set()
        assert await anext(answers) == b"through"
        await answers.aclose()


async def test_a_connection_without_a_call_is_closed() -> None:
    """Also between two calls: places are for those who use them."""
    async with site({"/echo": echo}, idle_seconds=PATIENCE) as place, place.caller() as caller:
        assert await caller.unary("/echo", b"x", PATIENCE) == b"x"
        pass_time(PATIENCE)
        await place.connection_ended()
        with pytest.raises(RpcError, match=r"idle timeout|shutting down|closed") as caught:
            await caller.unary("/echo", b"x", PATIENCE)
        assert caught.value.code == grpc.UNAVAILABLE


async def test_a_peer_that_says_nothing_at_all_is_closed() -> None:
    async with site({"/echo": echo}, idle_seconds=0.05) as place:
        reader, writer = await place.dialled()
        await place.connection_ended()
        await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()


async def test_a_request_that_never_becomes_complete_is_refused() -> None:
    async with site({"/echo": echo}, idle_seconds=PATIENCE) as place, raw_connection(place) as connection:
        call = connection.http2.open_stream(grpc.request_headers("/echo", "x"), RawCall().bind)
        behind_it = raw_call(connection, "/echo")
        await until(lambda: behind_it.ended)
        assert not call.ended
        pass_time(PATIENCE)
        await until(lambda: call.ended)
        assert call.status[0] == grpc.DEADLINE_EXCEEDED


# --- ends of a connection


async def test_handlers_are_cancelled_when_their_caller_goes_away() -> None:
    """And `serve` returns only when they have tidied up."""
    entered, tidied = asyncio.Event(), asyncio.Event()

    async def untidy(body: bytes, send: Send) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(50):
                await asyncio.sleep(0)
            tidied.set()

    async with site({"/untidy": untidy}) as place:
        async with place.caller() as caller:
            calling = asyncio.ensure_future(caller.unary("/untidy", b"", PATIENCE))
            await entered.wait()
        await place.connection_ended()
        assert tidied.is_set()
        with pytest.raises(RpcError):
            await calling


async def test_a_handler_may_go_on_with_what_it_shields() -> None:
    """An init that has begun is not undone because its user's laptop fell asleep."""
    gate, finished = Gate(), asyncio.Event()

    async def work(send: Send) -> None:
        gate.entered.set()
        await gate.open.wait()
        with pytest.raises(RpcError, match="client disconnected"):
            await send(b"done")
        finished.set()

    async def shielding(body: bytes, send: Send) -> None:
        await asyncio.shield(asyncio.ensure_future(work(send)))

    async with site({"/work": shielding}) as place:
        async with place.caller() as caller:
            calling = asyncio.ensure_future(caller.unary("/work", b"", PATIENCE))
            await gate.entered.wait()
        with pytest.raises(RpcError):
            await calling
        await place.connection_ended()
        gate.open.set()
        await asyncio.wait_for(finished.wait(), PATIENCE)


async def test_calls_fail_as_unavailable_when_the_server_goes_away() -> None:
    """Those that are open, and those that come later."""
    gate = Gate()
    async with site({"/gate": gate}) as place, place.caller() as caller:
        calling = asyncio.ensure_future(caller.unary("/gate", b"", PATIENCE))
        await gate.entered.wait()
        assert place.serving[0] is not None
        place.serving[0].cancel()
        for call in (calling, caller.unary("/gate", b"", PATIENCE)):
            with pytest.raises(RpcError) as caught:
                await call
            assert caught.value.code == grpc.UNAVAILABLE
        assert gate.cancelled.is_set()


async def test_closing_a_caller_fails_its_open_calls() -> None:
    gate = Gate()
    async with site({"/gate": gate}) as place, place.caller() as caller:
        calling = asyncio.ensure_future(caller.unary("/gate", b"", PATIENCE))
        await gate.entered.wait()
        await caller.aclose()
        with pytest.raises(RpcError, match="closed locally") as caught:
            await calling
        assert caught.value.code == grpc.UNAVAILABLE


async def test_a_stopping_service_lets_running_calls_finish_and_takes_no_others() -> None:
    gate, stopping = Gate(), asyncio.Event()
    async with site({"/gate": gate, "/echo": echo}, stopping=stopping) as place, place.caller() as caller:
        answers = caller.stream("/gate", b"")
        assert await anext(answers) == b"entered"
        stopping.set()
        await until(lambda: caller._connection.http2.peer_going_away)
        with pytest.raises(RpcError, match="shutting down") as caught:
            await caller.unary("/echo", b"", PATIENCE)
        assert caught.value.code == grpc.UNAVAILABLE
        gate.open.set()
        assert [answer async for answer in answers] == [b"through"]
        await place.connection_ended()


async def test_a_stopping_service_ends_idle_connections_at_once() -> None:
    stopping = asyncio.Event()
    async with site({"/echo": echo}, stopping=stopping) as place, place.caller() as caller:
        await caller.unary("/echo", b"", PATIENCE)
        stopping.set()
        await place.connection_ended()


# --- bounds


async def test_more_calls_than_are_allowed_at_once_are_refused_and_later_ones_taken() -> None:
    gate = Gate()
    async with site({"/gate": gate, "/echo": echo}, concurrent_max=1) as place, place.caller() as caller:
        answers = caller.stream("/gate", b"")
        assert await anext(answers) == b"entered"
        with pytest.raises(RpcError) as caught:
            await caller.unary("/echo", b"", PATIENCE)
        assert caught.value.code == grpc.UNAVAILABLE
        gate.open.set()
        assert [answer async for answer in answers] == [b"through"]
        assert await caller.unary("/echo", b"x", PATIENCE) == b"x"


async def test_two_requests_in_one_call_are_refused() -> None:
    async with site({"/echo": echo}) as place, raw_connection(place) as connection:
        call = raw_call(connection, "/echo", bodies=[b"one", b"two"])
        await until(lambda: call.ended)
        assert call.status[0] == grpc.UNIMPLEMENTED
        assert call.messages == []


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), PREFACE + b"\xff" * 50])
async def test_a_peer_with_another_protocol_is_disconnected(words: bytes) -> None:
    async with site({"/echo": echo}) as place:
        reader, writer = await place.dialled()
        writer.write(words)
        await place.connection_ended()
        await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()


async def test_a_server_that_speaks_another_language_is_unavailable() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(web, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with GrpcClient(*await asyncio.open_connection("127.0.0.1", port)) as caller:
            with pytest.raises(RpcError) as caught:
                await caller.unary("/echo", b"", PATIENCE)
            assert caught.value.code == grpc.UNAVAILABLE


# --- a client that does what ours would not


@asynccontextmanager
async def raw_connection(place: Site) -> AsyncIterator[GrpcConnection]:
    connection = GrpcConnection(*await place.dialled(), client=True)
    running = asyncio.ensure_future(connection.run())
    yield connection
    connection.end("done")
    await running


def raw_call(
    connection: GrpcConnection, path: str, metadata: Headers = (), *, bodies: list[bytes] | None = None
) -> RawCall:
    call = connection.http2.open_stream(grpc.request_headers(path, "x", metadata), RawCall().bind)
    call.send(*(bodies or [b""]))
    call.finish(lambda stream: stream.end())
    return call


async def first_words(path: str) -> bytes:
    """What a client writes to make one call, before it hears anything."""
    connection = GrpcConnection(asyncio.StreamReader(), None, client=True)  # type: ignore[arg-type]
    raw_call(connection, path)
    return b"".join(connection.http2.take_output())


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
