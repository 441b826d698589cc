"""The client side: calls with one request message and one response message or a stream of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Self

from bootbridge.runtime import tasks
from bootbridge.runtime.grpc.connection import ANSWER_SECONDS, KEEPALIVE_SECONDS, GrpcConnection
from bootbridge.runtime.grpc.errors import RpcError, rpc_error_from_reset
from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_stream import Stream
from bootbridge.wire.packets import Buffer

# Received messages that were not read yet; above this the server has to wait.
UNREAD_BYTES_MAX: Final = 1024 * 1024
# The peer is authenticated by the connection, never by this name.
AUTHORITY: Final = "bootbridge"


class GrpcClient:
    """Makes calls, also concurrent ones, on a connection that it owns.

    Other gRPC servers close connections that ping this often; `serve` does not.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._connection = GrpcConnection(
            reader, writer, client=True, keepalive_seconds=keepalive_seconds, answer_seconds=answer_seconds
        )
        self._running = tasks.spawn(self._connection.run(), "calls: caller")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def unary(self, path: str, body: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        """Returns the response message; raises RpcError."""
        answers = []
        async with aclosing(self.stream(path, body, timeout)) as stream:
            async for message in stream:
                answers.append(message)
                if len(answers) > 1:
                    raise RpcError(grpc.INTERNAL, "unary call: more than one response message")
        if not answers:
            raise RpcError(grpc.INTERNAL, "unary call: no response message")
        return answers[0]

    async def stream(
        self,
        path: str,
        body: bytes,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[bytes, None]:
        """Yields response messages; raises RpcError. Closing the generator cancels the call."""
        http2 = self._connection.http2
        if http2.closed or http2.peer_going_away:
            raise RpcError(grpc.UNAVAILABLE, self._connection.end_reason or "server is shutting down")
        deadline = () if timeout is None else (grpc.timeout_field(timeout),)
        call = http2.open_stream(grpc.request_headers(path, AUTHORITY, deadline), _Call)
        call.stream.send(grpc.message_prefix(len(body)), body)
        call.stream.end()
        ends_at = None if timeout is None else asyncio.get_running_loop().time() + timeout
        try:
            while (message := await _before(ends_at, call)) is not None:
                yield message
        finally:
            call.stream.reset(f.CANCEL)  # no effect if the call has ended

    async def aclose(self) -> None:
        """Closes the connection; open calls fail."""
        self._connection.end("connection closed locally")
        await asyncio.wait({self._running})


async def _before(ends_at: float | None, call: _Call) -> bytes | None:
    try:
        async with asyncio.timeout_at(ends_at):
            return await call.next_message()
    except TimeoutError:
        raise RpcError(grpc.DEADLINE_EXCEEDED, "deadline exceeded") from None


class _Call:
    """The stream handler of one call; holds messages until they are read."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._reader = grpc.MessageReader(self._on_message)
        self._unread: deque[bytes] = deque()
        self._unread_size = 0
        self._changed = asyncio.Event()
        self._over = False
        self._failure: RpcError | None = None

    async def next_message(self) -> bytes | None:
        """Returns None once the call has ended with status OK."""
        while not self._unread and not self._over:
            self._changed.clear()
            await self._changed.wait()
        if self._unread:
            message = self._unread.popleft()
            self._unread_size -= len(message)
            if self._unread_size <= UNREAD_BYTES_MAX:
                self.stream.resume_reading()
            return message
        if self._failure is not None:
            raise self._failure
        return None

    def _finish(self, failure: RpcError | None) -> None:
        if not self._over:
            self._over = True
            self._failure = failure
            self._changed.set()

    def _on_message(self, buffer: Buffer, start: int, end: int) -> None:
        self._unread.append(bytes(buffer[start:end]))
        self._unread_size += end - start
        if self._unread_size > UNREAD_BYTES_MAX:
            self.stream.pause_reading()
        self._changed.set()

    # --- from the connection

    def on_headers(self, headers: Headers, end: bool) -> None:
        fields = dict(headers)
        if end:
            status, message = grpc.status_of(headers)
            if status == grpc.OK and self._reader.mid_message:
                status, message = grpc.INTERNAL, "response truncated"
            self._finish(RpcError(status, message) if status != grpc.OK else None)
        elif fields.get(":status") != "200" or not fields.get("content-type", "").startswith(
            "application/grpc"
        ):
            self._fail(RpcError(grpc.UNAVAILABLE, "peer does not support gRPC"))

    def on_data(self, buffer: Buffer, start: int, end: int) -> None:
        if self._over:
            return
        try:
            self._reader.receive(buffer, start, end)
        except grpc.GrpcError as error:
            self._fail(RpcError(error.code, str(error)))

    def on_end(self) -> None:
        self._finish(RpcError(grpc.UNKNOWN, "call ended without a status"))

    def on_reset(self, code: int, reason: str) -> None:
        gone = self.stream.connection.closed
        self._finish(RpcError(grpc.UNAVAILABLE, reason) if gone else rpc_error_from_reset(code, reason))

    def on_ready(self) -> None:
        """Nothing to do: the stream already has the whole request."""

    def _fail(self, failure: RpcError) -> None:
        self._finish(failure)
        self.stream.reset(f.CANCEL)
