"""One dial without I/O: every answer of a server, in any pieces, is a connection or one error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bootbridge.frontend_client.call import (
    ANSWER_BYTES_MAX,
    UNREAD_BYTES_MAX,
    ConnectCall,
    DialError,
    GrpcCall,
    ProtocolMismatchError,
    TunnelCall,
)
from bootbridge.frontend_client.dial_problem import DialProblem, problem_of
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream

ADDRESS = "[fd00::7]:8443"


def feed(call: TunnelCall, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        call.receive(data[at : at + size])


def feed_all(call: TunnelCall, data: bytes, size: int, *, ends: bool) -> None:
    feed(call, data, size)
    if ends:
        call.receive_end()


# --- HTTP CONNECT


def test_the_request_names_the_destination() -> None:
    assert (
        ConnectCall(ADDRESS).take_output()
        == f"CONNECT {ADDRESS} HTTP/1.1\r\nHost: {ADDRESS}\r\n\r\n".encode()
    )


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_bytes_behind_the_head_are_those_of_the_destination(size: int) -> None:
    call = ConnectCall(ADDRESS)
    feed(call, b"HTTP/1.1 200 Connection Established\r\nServer: x\r\n\r\n220 I speak first", size)
    assert call.connected
    assert call.take_received() == b"220 I speak first"
    call.receive_end()
    assert (call.ended, call.error) == (True, "")


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("ended_by", ["length", "end"])
def test_a_refusal_has_the_body_as_its_reason(size: int, ended_by: str) -> None:
    call = ConnectCall(ADDRESS)
    length = b"Content-Length: 18\r\n" if ended_by == "length" else b""
    answer = b"HTTP/1.1 502 Bad Gateway\r\n" + length + b"\r\nconnection refused"
    with pytest.raises(DialError, match=r"^connection refused$") as refused:
        feed_all(call, answer, size, ends=ended_by == "end")
    assert call.refused
    assert refused.value.status == "502 Bad Gateway"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "closed the connection without a response"),
        (b"HTTP/1.1 200", "closed the connection without a response"),
        (b"HTTP/1.1 503 Unavailable\r\n\r\n", "^503 Unavailable$"),
        (b"HTTP/1.1 503 Unavailable\r\nContent-Length: x\r\n\r\nreason", "^reason$"),
        (b"HTTP/1.1 200\r\n" + b"x" * (ANSWER_BYTES_MAX + 1), "answer has no end"),
    ],
)
def test_an_invalid_answer_is_one_error(answer: bytes, error: str) -> None:
    call = ConnectCall(ADDRESS)
    with pytest.raises(DialError, match=error):
        feed_all(call, answer, 4096, ends=True)


def test_the_server_waits_while_nothing_is_taken() -> None:
    call = ConnectCall(ADDRESS)
    call.receive(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(UNREAD_BYTES_MAX))
    assert not call.wants_input
    call.take_received()
    assert call.wants_input


# --- gRPC


class GrpcServer:
    """The server's side of one Proxy stream."""

    def __init__(self, call: GrpcCall) -> None:
        self._call = call
        self._reader = grpc.MessageReader(self._on_message)
        self.received: list[p.Packet] = []
        self._http2 = Http2Connection(client=False, on_request=self._on_request)
        self.exchange()

    def _on_request(self, stream: Stream, headers: Headers) -> GrpcServer:
        self.stream = stream
        self.path = dict(headers)[":path"]
        return self

    def _on_message(self, buffer: p.Buffer, start: int, end: int) -> None:
        self.received.append(p.decode(bytes(memoryview(buffer)[start:end])))

    def on_headers(self, headers: Headers, end: bool) -> None:
        self.stream.send_headers(grpc.response_headers())

    def on_data(self, buffer: p.Buffer, start: int, end: int) -> None:
        self._reader.receive(buffer, start, end)

    def on_end(self) -> None: ...
    def on_reset(self, code: int, reason: str) -> None: ...
    def on_ready(self) -> None: ...

    def send(self, packet: p.Packet) -> None:
        body = p.encode(packet)
        self.stream.send(grpc.message_prefix(len(body)) + body)
        self.exchange()

    def exchange(self, size: int = 4096) -> None:
        """Passes all output to the other side, until neither has any."""
        while True:
            up, down = self._call.take_output(), b"".join(self._http2.take_output())
            self._http2.flushed(True)
            if not up and not down:
                return
            self._http2.receive(up)
            feed(self._call, down, size)


def dialled() -> tuple[GrpcCall, GrpcServer]:
    call = GrpcCall(ADDRESS)
    server = GrpcServer(call)
    (request,) = server.received
    assert isinstance(request, p.DialRequest)
    assert (server.path, request.address) == ("/ProxyService/Proxy", ADDRESS)
    server.send(p.DialResponse("", 7, request.random))
    return call, server


def test_data_is_copied_in_both_directions_and_the_close_is_sent() -> None:
    call, server = dialled()
    assert call.connected
    call.send(b"question")
    server.exchange()
    server.send(p.Data(7, b"answer"))
    assert call.take_received() == b"answer"
    call.end()
    server.exchange()
    assert server.received[1:] == [p.Data(7, b"question"), p.CloseRequest(7)]


def test_data_of_another_connection_is_ignored() -> None:
    call, server = dialled()
    server.send(p.Data(8, b"not yours"))
    server.send(p.CloseResponse("not yours", 8))
    assert (call.take_received(), call.ended) == (b"", False)


@pytest.mark.parametrize("error", ["", "agent lost"])
def test_the_end_has_the_reason_of_the_server(error: str) -> None:
    call, server = dialled()
    server.send(p.CloseResponse(error, 7))
    assert (call.ended, call.error) == (True, error)


def test_a_refused_dial_has_the_reason_of_the_agent() -> None:
    call = GrpcCall(ADDRESS)
    server = GrpcServer(call)
    with pytest.raises(DialError, match="no route to host"):
        server.send(p.DialResponse("no route to host", 0, 0))


def test_a_server_that_closes_before_its_answer_is_an_error() -> None:
    with pytest.raises(DialError, match="the server closed the connection"):
        GrpcCall(ADDRESS).receive_end()


def test_an_upload_waits_for_the_window_of_the_server() -> None:
    call, _ = dialled()
    sent = 0
    while call.ready:
        call.send(bytes(65536))
        sent += 65536
        call.take_output()  # lost on the way: the server never returns its window
    assert 0 < sent <= 64 << 20
    assert not call.ended


# --- the wrong protocol


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("make", "answer", "mode"),
    [
        (ConnectCall, bytes.fromhex("00000004000000000000"), "--mode=grpc"),
        (GrpcCall, b"HTTP/1.1 505 HTTP Version Not Supported\r\n\r\n", "--mode=http-connect"),
    ],
)
def test_a_server_of_the_other_protocol_is_recognised(
    make: Callable[[str], TunnelCall], answer: bytes, mode: str, size: int
) -> None:
    with pytest.raises(ProtocolMismatchError, match=mode):
        feed(make(ADDRESS), answer, size)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("currently no tunnels available: No agent available", DialProblem.NO_AGENT),
        ("dial tcp 10.0.0.1:1: connect: connection refused", DialProblem.REFUSED),
        ("dial tcp 10.0.0.1:1: connect: no route to host", DialProblem.NO_ROUTE),
        ("dial tcp 10.0.0.1:1: i/o timeout", DialProblem.TIMED_OUT),
        ("destination refused by default rule loopback", DialProblem.FORBIDDEN),
        ("dial tcp: lookup x.invalid: no such host", DialProblem.NAME_NOT_FOUND),
        ("anything else", DialProblem.OTHER),
    ],
)
def test_the_texts_of_servers_and_agents_are_understood(text: str, problem: DialProblem) -> None:
    assert problem_of(text) is problem
