"""The server side: a handler for each path, started when its request is complete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from bootbridge.runtime import logs, tasks
from bootbridge.runtime.grpc.connection import ANSWER_SECONDS, KEEPALIVE_SECONDS, GrpcConnection
from bootbridge.runtime.grpc.errors import RpcError
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_stream import Stream
from bootbridge.wire.packets import Buffer

Send = Callable[[bytes], Awaitable[None]]
# Gets the request and `send`, which waits while the client does not read. Raising RpcError answers with that
# status. The handler is cancelled when the client disconnects.
Handler = Callable[[bytes, Send], Awaitable[None]]

CONCURRENT_MAX: Final = 16
# Timeout of a connection without a call, and of an incomplete request.
IDLE_SECONDS_MAX: Final = 30.0


async def serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    handlers: Mapping[str, Handler],
    *,
    concurrent_max: int = CONCURRENT_MAX,
    idle_seconds: float = IDLE_SECONDS_MAX,
    keepalive_seconds: float = KEEPALIVE_SECONDS,
    answer_seconds: float = ANSWER_SECONDS,
    stopping: asyncio.Event | None = None,
) -> None:
    """Answers calls until the connection and all its handlers have ended.

    Once ``stopping`` is set, new calls are rejected, and the connection ends after the last running one.
    """
    service = _Service(handlers, idle_seconds)
    connection = GrpcConnection(
        reader,
        writer,
        client=False,
        on_request=service.on_request,
        streams_max=concurrent_max,
        idle_seconds=idle_seconds,
        keepalive_seconds=keepalive_seconds,
        answer_seconds=answer_seconds,
    )
    watching = tasks.spawn(_drain_at(stopping, connection), "calls: stopping") if stopping else None
    try:
        await connection.run()
    finally:
        if watching is not None:
            watching.cancel()
        await service.ended()


async def _drain_at(stopping: asyncio.Event, connection: GrpcConnection) -> None:
    await stopping.wait()
    connection.drain()


class _Service:
    """The calls of one connection."""

    def __init__(self, handlers: Mapping[str, Handler], request_seconds: float) -> None:
        self.handlers = handlers
        self.request_seconds = request_seconds
        self.running: set[asyncio.Task[Any]] = set()

    def on_request(self, stream: Stream, headers: Headers) -> _Call:
        return _Call(self, stream)

    def start(self, call: _Call) -> asyncio.Task[Any]:
        task = tasks.spawn(call.run(), "calls: handler")
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    async def ended(self) -> None:
        """Waits for the handlers, which were cancelled with their streams."""
        if self.running:
            await asyncio.wait(set(self.running))


class _Call:
    """One call: its stream's handler, and the task that runs the service's handler."""

    def __init__(self, service: _Service, stream: Stream) -> None:
        self._service = service
        self._stream = stream
        self._reader = grpc.MessageReader(self._on_message)
        self._handler: Handler | None = None
        self._request: bytes | None = None
        self._seconds: float | None = None
        self._task: asyncio.Task[Any] | None = None
        self._ready = asyncio.Event()
        self._answering = False
        self._incomplete = asyncio.get_running_loop().call_later(
            service.request_seconds,
            self._refuse,
            grpc.DEADLINE_EXCEEDED,
            "incomplete request: timed out",
        )

    # --- from the connection

    def on_headers(self, headers: Headers, end: bool) -> None:
        if refusal := grpc.request_refusal(headers):
            self._incomplete.cancel()
            self._stream.send_headers(refusal, end=True)
            return
        path = dict(headers)[":path"]
        self._seconds = grpc.timeout_of(headers)
        self._handler = self._service.handlers.get(path)
        if self._handler is None:
            self._refuse(grpc.UNIMPLEMENTED, f"unknown method {path[:200]}")

    def on_data(self, buffer: Buffer, start: int, end: int) -> None:
        try:
            self._reader.receive(buffer, start, end)
        except grpc.GrpcError as error:
            self._refuse(error.code, str(error))

    def _on_message(self, buffer: Buffer, start: int, end: int) -> None:
        if self._request is not None:
            raise grpc.GrpcError("unary call: more than one request message", grpc.UNIMPLEMENTED)
        self._request = bytes(buffer[start:end])

    def on_end(self) -> None:
        self._incomplete.cancel()
        if self._stream.local_closed:
            return
        if self._request is None or self._reader.mid_message:
            self._refuse(grpc.INTERNAL, "request truncated")
        else:
            self._task = self._service.start(self)

    def on_reset(self, code: int, reason: str) -> None:
        self._incomplete.cancel()
        self._ready.set()
        if self._task is not None:
            self._task.cancel()

    def on_ready(self) -> None:
        self._ready.set()

    # --- the answer

    async def run(self) -> None:
        assert self._handler is not None
        assert self._request is not None
        status, message = grpc.OK, ""
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                await self._handler(self._request, self._send)
        except RpcError as failure:
            status, message = failure.code, failure.message
        except TimeoutError as error:
            if not deadline.expired():
                status, message = self._unexpected(error)
            else:
                status, message = grpc.DEADLINE_EXCEEDED, "deadline exceeded"
        except Exception as error:
            status, message = self._unexpected(error)
        if not self._stream.local_closed:
            self._end(status, message)

    def _unexpected(self, error: Exception) -> tuple[int, str]:
        """Logs a bug; the client gets no details."""
        logs.event("calls", logs.ERROR, "handler failed", reason=repr(error))
        return grpc.INTERNAL, "internal error, see the server's log"

    async def _send(self, message: bytes) -> None:
        stream = self._stream
        while not stream.ready:
            if stream.local_closed:
                raise RpcError(grpc.CANCELLED, "client disconnected")
            self._ready.clear()
            await self._ready.wait()
        if not self._answering:
            self._answering = True
            stream.send_headers(grpc.response_headers())
        stream.send(grpc.message_prefix(len(message)), message)

    def _refuse(self, status: int, message: str) -> None:
        self._incomplete.cancel()
        if not self._stream.local_closed:
            self._end(status, message)

    def _end(self, status: int, message: str) -> None:
        trailers = grpc.trailers if self._answering else grpc.refusal
        self._stream.send_headers(trailers(status, message), end=True)
