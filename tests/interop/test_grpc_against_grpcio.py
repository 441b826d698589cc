"""grpcio, Google's own gRPC, as client of `serve` and as server of `GrpcClient`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from bootbridge.runtime.grpc import GrpcClient, RpcError, Send, serve
from bootbridge.wire import grpc_messages as codes

pytestmark = pytest.mark.interop

MIB = 1024 * 1024
PATIENCE = 30.0
SIZES = [0, 1, 16_384, 65_536, MIB, 3 * MIB]
TEXTS = ["plain", "100 % (fünf) — 日本語", "two\r\nlines\ttabbed"]
METADATA = (("x-twice", "1"), ("x-twice", "2"), ("raw-bin", bytes(range(256))))


class Waiting:
    """A handler that answers once and waits for ever; knows whether it was cancelled."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def handle(self, body: bytes, send: Send) -> None:
        await send(b"waiting")
        await self.for_ever()

    async def for_ever(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def is_cancelled(self) -> None:
        await asyncio.wait_for(self.cancelled.wait(), PATIENCE)


@pytest.fixture
async def waiting() -> Waiting:
    return Waiting()


# --- grpcio is the client


async def echo(body: bytes, send: Send) -> None:
    await send(body)


async def repeat(body: bytes, send: Send) -> None:
    for number in range(10):
        await send(body + b"%d" % number)


async def refuse(body: bytes, send: Send) -> None:
    code, _, text = body.decode().partition(" ")
    raise RpcError(int(code), text)


@pytest.fixture
async def channel(waiting: Waiting) -> AsyncIterator[grpc.aio.Channel]:
    """A grpcio channel to our service."""
    handlers = {
        "/Test/Echo": echo,
        "/Test/Repeat": repeat,
        "/Test/Refuse": refuse,
        "/Test/Wait": waiting.handle,
    }

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer, handlers)

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        yield channel
    server.close()


@pytest.mark.parametrize("size", SIZES)
async def test_grpcio_gets_its_answer(channel: grpc.aio.Channel, size: int) -> None:
    assert await channel.unary_unary("/Test/Echo")(bytes(size), timeout=PATIENCE) == bytes(size)


async def test_grpcio_gets_a_stream_of_answers(channel: grpc.aio.Channel) -> None:
    body = bytes(400_000)
    call = channel.unary_stream("/Test/Repeat")(body, timeout=PATIENCE)
    assert [answer async for answer in call] == [body + b"%d" % number for number in range(10)]
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_grpcio_reads_the_status_of_a_refusal(channel: grpc.aio.Channel, code: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/Test/Refuse")(b"%d why" % code.value[0], timeout=PATIENCE)
    assert caught.value.code() is code
    assert caught.value.details() == "why"


@pytest.mark.parametrize("text", TEXTS)
async def test_grpcio_reads_the_text_of_a_refusal(channel: grpc.aio.Channel, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/Test/Refuse")(f"9 {text}".encode(), timeout=PATIENCE)
    assert caught.value.details() == text


async def test_grpcio_hears_that_a_method_is_not_there(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/Test/Nothing")(b"", timeout=PATIENCE)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_metadata_of_grpcio_disturbs_nothing(channel: grpc.aio.Channel) -> None:
    answer = channel.unary_unary("/Test/Echo")(b"x", metadata=METADATA, timeout=PATIENCE)
    assert await answer == b"x"


async def test_a_cancellation_by_grpcio_reaches_the_handler(
    channel: grpc.aio.Channel, waiting: Waiting
) -> None:
    """And only that one: the connection goes on."""
    call = channel.unary_stream("/Test/Wait")(b"", timeout=PATIENCE)
    assert await call.read() == b"waiting"
    call.cancel()
    await waiting.is_cancelled()
    assert await channel.unary_unary("/Test/Echo")(b"again", timeout=PATIENCE) == b"again"


async def test_a_deadline_of_grpcio_reaches_the_handler(channel: grpc.aio.Channel, waiting: Waiting) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/Test/Wait")(b"", timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await waiting.is_cancelled()


async def test_a_request_with_compression_is_refused_in_words(channel: grpc.aio.Channel) -> None:
    """We agree on none; grpcio can be configured to use one anyway."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/Test/Echo")(
            bytes(5000), timeout=PATIENCE, compression=grpc.Compression.Gzip
        )
    assert "compress" in caught.value.details()


# --- grpcio is the server


class Handlers(grpc.GenericRpcHandler):
    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self.deadlines: list[float | None] = []

    def service(self, details: Any) -> Any:
        if details.method == "/Test/Echo":
            return grpc.unary_unary_rpc_method_handler(self.echo)
        streams = {"/Test/Repeat": self.repeat, "/Test/Refuse": self.refuse, "/Test/Wait": self.wait}
        method = streams.get(details.method)
        return grpc.unary_stream_rpc_method_handler(method) if method else None

    async def echo(self, body: bytes, context: Any) -> bytes:
        self.deadlines.append(context.time_remaining())
        await context.send_initial_metadata(METADATA)
        context.set_trailing_metadata(METADATA)
        return body

    async def repeat(self, body: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(10):
            yield body + b"%d" % number

    async def refuse(self, body: bytes, context: Any) -> AsyncIterator[bytes]:
        code, _, text = body.decode().partition(" ")
        yield b"before the end"
        await context.abort(next(each for each in grpc.StatusCode if each.value[0] == int(code)), text)

    async def wait(self, body: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"waiting"
        await self._waiting.for_ever()


@pytest.fixture
async def handlers(waiting: Waiting) -> Handlers:
    return Handlers(waiting)


@asynccontextmanager
async def grpcio_server(handlers: Handlers) -> AsyncIterator[tuple[grpc.aio.Server, int]]:
    server = grpc.aio.server(handlers=[handlers])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(None)


@pytest.fixture
async def caller(handlers: Handlers) -> AsyncIterator[GrpcClient]:
    async with (
        grpcio_server(handlers) as (_, port),
        GrpcClient(*await asyncio.open_connection("127.0.0.1", port)) as caller,
    ):
        yield caller


@pytest.mark.parametrize("size", SIZES)
async def test_a_grpcio_server_answers_us(caller: GrpcClient, size: int) -> None:
    """With metadata of its own around the answer."""
    assert await caller.unary("/Test/Echo", bytes(size), PATIENCE) == bytes(size)


async def test_a_grpcio_server_streams_to_us(caller: GrpcClient) -> None:
    body = bytes(400_000)
    answers = [answer async for answer in caller.stream("/Test/Repeat", body)]
    assert answers == [body + b"%d" % number for number in range(10)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("code", [codes.INVALID_ARGUMENT, codes.PERMISSION_DENIED, codes.UNAUTHENTICATED])
async def test_we_read_the_status_of_a_grpcio_server(caller: GrpcClient, code: int, text: str) -> None:
    answers = caller.stream("/Test/Refuse", f"{code} {text}".encode())
    assert await anext(answers) == b"before the end"
    with pytest.raises(RpcError) as caught:
        await anext(answers)
    assert (caught.value.code, caught.value.message) == (code, text)


async def test_we_hear_that_a_method_is_not_there(caller: GrpcClient) -> None:
    with pytest.raises(RpcError) as caught:
        await caller.unary("/Test/Nothing", b"", PATIENCE)
    assert caught.value.code == codes.UNIMPLEMENTED


async def test_our_cancellation_reaches_a_grpcio_handler(caller: GrpcClient, waiting: Waiting) -> None:
    async with aclosing(caller.stream("/Test/Wait", b"")) as answers:
        assert await anext(answers) == b"waiting"
    await waiting.is_cancelled()
    assert await caller.unary("/Test/Echo", b"again", PATIENCE) == b"again"


async def test_our_deadline_is_known_to_a_grpcio_server(caller: GrpcClient, handlers: Handlers) -> None:
    await caller.unary("/Test/Echo", b"", 25.0)
    assert handlers.deadlines[0] is not None
    assert 20 < handlers.deadlines[0] <= 25


async def test_our_deadline_ends_a_call_to_a_grpcio_server(caller: GrpcClient, waiting: Waiting) -> None:
    with pytest.raises(RpcError) as caught:
        await caller.unary("/Test/Wait", b"", 0.2)
    assert caught.value.code == codes.DEADLINE_EXCEEDED
    await waiting.is_cancelled()


async def test_a_grpcio_server_that_stops_makes_calls_unavailable(handlers: Handlers) -> None:
    async with (
        grpcio_server(handlers) as (server, port),
        GrpcClient(*await asyncio.open_connection("127.0.0.1", port)) as caller,
    ):
        answers = caller.stream("/Test/Wait", b"")
        assert await anext(answers) == b"waiting"
        await server.stop(0)
        with pytest.raises(RpcError) as caught:
            await anext(answers)
        assert caught.value.code in (codes.UNAVAILABLE, codes.CANCELLED)
        with pytest.raises(RpcError) as caught:
            await caller.unary("/Test/Echo", b"", PATIENCE)
        assert caught.value.code == codes.UNAVAILABLE
