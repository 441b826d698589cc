"""Calls that are answered with an error at once: another method, or a request that is not gRPC."""

from __future__ import annotations

from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_stream import Stream, StreamHandler
from bootbridge.wire.packets import Buffer


def refused_call(stream: Stream, headers: Headers, path: str) -> StreamHandler | None:
    """Returns the handler of a call of any other method, or of a request that is not gRPC; else None."""
    answer = grpc.request_refusal(headers)
    if answer is not None:
        return NotGrpc(stream, answer)
    asked = dict(headers)[":path"]
    if asked != path:
        text = f"unknown method {asked[:200]}; this port serves {path}"
        return RefusedCall(stream, grpc.refusal(grpc.UNIMPLEMENTED, text))
    return None


class RefusedCall:
    """Answers a call with an error at once."""

    def __init__(self, stream: Stream, answer: Headers) -> None:
        self._stream = stream
        self._answer = answer

    def on_headers(self, headers: Headers, end: bool) -> None:
        self._stream.send_headers(self._answer, end=True)
        self._stream.pause_reading()

    def on_end(self) -> None: ...
    def on_data(self, buffer: Buffer, start: int, end: int) -> None: ...
    def on_reset(self, code: int, reason: str) -> None: ...
    def on_ready(self) -> None: ...


class NotGrpc(RefusedCall):
    """Answers a request that is not gRPC with a line of plain text, once the request has ended."""

    def on_headers(self, headers: Headers, end: bool) -> None:
        self._stream.pause_reading()

    def on_end(self) -> None:
        _, text = grpc.status_of(self._answer)
        self._stream.send_headers(self._answer)
        self._stream.send(f"{text}\n".encode())
        self._stream.end()
