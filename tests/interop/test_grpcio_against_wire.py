"""grpcio, Google's own gRPC, as client and as server against our connections, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from bootbridge.wire import frames as f
from bootbridge.wire import grpc_messages as messages
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_connection import Stream
from tests.support.wire_peers import Caller, Echo
from tests.support.wire_pump import PATIENCE_SECONDS, Listener, Pump, dialled

pytestmark = pytest.mark.interop

MIB = 1024 * 1024
TEXTS = [
    "plain",
    "100 % (fünf) — 日本語",
    "two\r\nlines\ttabbed",
    "~tilde%41",
]
METADATA = (("agentid", "a-1"), ("x-twice", "1"), ("x-twice", "2"), ("raw-bin", bytes(range(256))))


# --- grpcio is the client


class Failing(Caller):
    """Answers with the status and the text that the request's metadata ask for."""

    def on_headers(self, headers: Headers, end: bool) -> None:
        super().on_headers(headers, end)
        assert self.stream is not None
        fields = dict(headers)
        status, text = int(fields["want-status"]), bytes.fromhex(fields["want-text"]).decode()
        if fields.get("want-late"):
            self.stream.send_headers(messages.response_headers((("early", "yes"),)))
            self.send(b"before the end")
            self.stream.send_headers(messages.trailers(status, text), end=True)
        else:
            self.stream.send_headers(messages.refusal(status, text), end=True)


class Mirror(Caller):
    """Sends the request's metadata back, in headers and again in trailers."""

    def on_headers(self, headers: Headers, end: bool) -> None:
        super().on_headers(headers, end)
        assert self.stream is not None
        wanted = [(key, value) for key, value in headers if key.startswith(("x-", "raw-", "agentid"))]
        self.stream.send_headers(messages.response_headers(wanted))
        self.stream.send_headers((*messages.trailers(messages.OK), *wanted), end=True)


class Service:
    """Our side of a test: what is served, and the calls that came in."""

    def __init__(self) -> None:
        self.calls: list[Caller] = []

    def __call__(self, stream: Stream, headers: Headers) -> Caller:
        kinds: dict[str, type[Caller]] = {"/Test/Echo": Echo, "/Test/Fail": Failing, "/Test/Mirror": Mirror}
        self.calls.append(kinds[dict(headers)[":path"]]().bind(stream))
        return self.calls[-1]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def listener(service: Service) -> Iterator[Listener]:
    with Listener(service) as listener:
        yield listener


def channel_to(listener: Listener, **options: int) -> grpc.Channel:
    # Without a shared subchannel pool every test has a connection of its own.
    arguments = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(
        listener.address, options=[*arguments, *((f"grpc.{key}", value) for key, value in options.items())]
    )


def bidi(channel: grpc.Channel, method: str) -> Any:
    return channel.stream_stream(f"/Test/{method}")


class Feed:
    """Requests of a bidirectional call, given one by one."""

    def __init__(self) -> None:
        self._items: list[bytes | None] = []
        self._changed = threading.Condition()

    def put(self, item: bytes | None) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._items, PATIENCE_SECONDS):
                    return
                item = self._items.pop(0)
            if item is None:
                return
            yield item


SIZES = [0, 1, 100, 16_379, 16_380, 65_535, 65_536, MIB, 3 * MIB]


def test_grpcio_gets_its_messages_back(listener: Listener) -> None:
    """Of every size, in order, and then OK."""
    sent = [bytes([index]) * size for index, size in enumerate(SIZES)]
    with channel_to(listener) as channel:
        call = bidi(channel, "Echo")(iter(sent), timeout=PATIENCE_SECONDS)
        assert list(call) == sent
        assert call.code() is grpc.StatusCode.OK


def test_grpcio_talks_back_and_forth(listener: Listener) -> None:
    """Each answer is there before the next question: nothing waits for more output."""
    feed = Feed()
    with channel_to(listener) as channel:
        call = bidi(channel, "Echo")(iter(feed), timeout=PATIENCE_SECONDS)
        for turn in range(50):
            feed.put(b"turn %d" % turn)
            assert next(call) == b"turn %d" % turn
        feed.put(None)
        assert list(call) == []
        assert call.code() is grpc.StatusCode.OK


def test_grpcio_makes_many_calls_at_once(listener: Listener) -> None:
    """On one connection, without mixing."""
    with channel_to(listener) as channel, futures.ThreadPoolExecutor(8) as pool:

        def call(number: int) -> list[bytes]:
            sent = [b"%d/%d" % (number, index) * 3000 for index in range(20)]
            answer: Iterable[bytes] = bidi(channel, "Echo")(iter(sent), timeout=PATIENCE_SECONDS)
            return [] if list(answer) == sent else sent

        assert list(pool.map(call, range(24))) == [[]] * 24
    assert len(listener.pumps) == 1


@pytest.mark.parametrize("late", [False, True], ids=["trailers-only", "after a message"])
@pytest.mark.parametrize("text", TEXTS)
def test_grpcio_reads_our_status(listener: Listener, text: str, late: bool) -> None:
    """Code and text, for all texts, with and without a message before."""
    metadata = [("want-status", "14"), ("want-text", text.encode().hex()), *([("want-late", "1")] * late)]
    with channel_to(listener) as channel:
        call = bidi(channel, "Fail")(iter([]), metadata=metadata, timeout=PATIENCE_SECONDS)
        with pytest.raises(grpc.RpcError):
            list(call)
        assert call.code() is grpc.StatusCode.UNAVAILABLE
        assert call.details() == text


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_grpcio_reads_every_status_code(listener: Listener, code: grpc.StatusCode) -> None:
    """The numbers mean the same to both of us."""
    metadata = [("want-status", str(code.value[0])), ("want-text", b"why".hex())]
    with channel_to(listener) as channel:
        call = bidi(channel, "Fail")(iter([]), metadata=metadata, timeout=PATIENCE_SECONDS)
        with pytest.raises(grpc.RpcError):
            list(call)
        assert call.code() is code
        assert call.details() == "why"


def test_grpcio_gets_its_metadata_back(listener: Listener) -> None:
    """Repeated keys and binary values, in headers and in trailers."""
    with channel_to(listener) as channel:
        call = bidi(channel, "Mirror")(iter([]), metadata=METADATA, timeout=PATIENCE_SECONDS)
        assert list(call) == []
        for got in (call.initial_metadata(), call.trailing_metadata()):
            assert [(key, value) for key, value in got if key in dict(METADATA)] == list(METADATA)


def test_a_cancellation_by_grpcio_reaches_us(listener: Listener, service: Service) -> None:
    """As a reset with CANCEL, and the connection goes on."""
    feed = Feed()
    with channel_to(listener) as channel:
        call = bidi(channel, "Echo")(iter(feed), timeout=PATIENCE_SECONDS)
        feed.put(b"x")
        assert next(call) == b"x"
        call.cancel()
        pump = listener.pumps[0]
        pump.wait_for(lambda: service.calls[0].reset, "the reset")
        assert service.calls[0].reset is not None
        assert service.calls[0].reset[0] == f.CANCEL
        again = bidi(channel, "Echo")(iter([b"again"]), timeout=PATIENCE_SECONDS)
        assert list(again) == [b"again"]
        feed.put(None)
    assert len(listener.pumps) == 1


def test_a_reset_by_us_reaches_grpcio(listener: Listener, service: Service) -> None:
    """As a failed call, not as a hanging one."""
    feed = Feed()
    with channel_to(listener) as channel:
        call = bidi(channel, "Echo")(iter(feed), timeout=PATIENCE_SECONDS)
        feed.put(b"x")
        assert next(call) == b"x"
        stream = service.calls[0].stream
        assert stream is not None
        listener.pumps[0].do(lambda: stream.reset(f.INTERNAL_ERROR))
        with pytest.raises(grpc.RpcError):
            next(call)
        assert call.code() is grpc.StatusCode.INTERNAL
        feed.put(None)


def test_a_call_survives_keepalive_pings(listener: Listener) -> None:
    """Grpcio would drop a connection that does not answer them."""
    feed = Feed()
    options = {"keepalive_time_ms": 50, "keepalive_timeout_ms": 2000, "http2.max_pings_without_data": 0}
    with channel_to(listener, **options) as channel:
        call = bidi(channel, "Echo")(iter(feed), timeout=PATIENCE_SECONDS)
        feed.put(b"before")
        assert next(call) == b"before"
        pump = listener.pumps[0]
        seen = pump.pings_seen
        pump.wait_for(lambda: pump.pings_seen >= seen + 3, "three keepalive pings")
        feed.put(b"after")
        assert next(call) == b"after"
        feed.put(None)
    assert len(listener.pumps) == 1


def test_grpcio_hears_that_we_go_away(listener: Listener, service: Service) -> None:
    """The running call ends in peace; the next one comes on a new connection."""
    feed = Feed()
    with channel_to(listener) as channel:
        call = bidi(channel, "Echo")(iter(feed), timeout=PATIENCE_SECONDS)
        feed.put(b"x")
        assert next(call) == b"x"
        pump = listener.pumps[0]
        pump.do(lambda: pump.http2.go_away(f.NO_ERROR, "draining"))
        feed.put(b"y")
        assert next(call) == b"y"
        feed.put(None)
        assert list(call) == []
        assert call.code() is grpc.StatusCode.OK
        again = bidi(channel, "Echo")(iter([b"again"]), timeout=PATIENCE_SECONDS, wait_for_ready=True)
        assert list(again) == [b"again"]
    assert len(listener.pumps) == 2


# --- grpcio is the server


class Handlers(grpc.GenericRpcHandler):
    """What a grpcio server serves to our client."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def service(self, details: Any) -> Any:
        methods = {"/Test/Echo": self.echo, "/Test/Fail": self.fail, "/Test/Mirror": self.mirror}
        method = methods.get(details.method)
        return grpc.stream_stream_rpc_method_handler(method) if method else None

    def echo(self, requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
        context.add_callback(lambda: None if context.code() else self.cancelled.set())
        yield from requests

    def fail(self, requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
        text = dict(context.invocation_metadata())["want-text"]
        yield b"before the end"
        context.abort(grpc.StatusCode.UNAVAILABLE, bytes.fromhex(text).decode())

    def mirror(self, requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
        wanted = [(key, value) for key, value in context.invocation_metadata() if key in dict(METADATA)]
        context.send_initial_metadata(wanted)
        context.set_trailing_metadata(wanted)
        yield from ()


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def pump(handlers: Handlers) -> Iterator[Pump]:
    """A client connection to a grpcio server."""
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[handlers])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with dialled(port) as pump:
            yield pump
    finally:
        server.stop(None).wait(PATIENCE_SECONDS)


def call(pump: Pump, method: str, metadata: Headers = ()) -> Caller:
    headers = messages.request_headers(f"/Test/{method}", "localhost", metadata, scheme="http")
    return pump.do(lambda: pump.http2.open_stream(headers, Caller().bind))


def half_close(pump: Pump, caller: Caller) -> None:
    pump.do(lambda: caller.finish(lambda stream: stream.end()))
    pump.wait_for(lambda: caller.ended, "the end of the call")


def test_a_grpcio_server_echoes_us(pump: Pump) -> None:
    """Messages of every size through its small windows, then OK."""
    sent = [bytes([index]) * size for index, size in enumerate(SIZES)]
    caller = call(pump, "Echo")
    pump.do(lambda: caller.send(*sent))
    half_close(pump, caller)
    assert caller.messages == sent
    assert caller.status == (messages.OK, "")
    assert pump.http2.streams == {}


def test_a_grpcio_server_serves_many_calls_of_ours(pump: Pump) -> None:
    """At the same time, one connection."""
    callers = [call(pump, "Echo") for _ in range(6)]
    for number, caller in enumerate(callers):
        pump.do(lambda caller=caller, number=number: caller.send(*[b"%d" % number * 40_000] * 10))  # type: ignore[misc]
    for number, caller in enumerate(callers):
        half_close(pump, caller)
        assert caller.messages == [b"%d" % number * 40_000] * 10


@pytest.mark.parametrize("text", TEXTS)
def test_we_read_the_status_of_a_grpcio_server(pump: Pump, text: str) -> None:
    """Code and text, for all texts."""
    caller = call(pump, "Fail", (("want-text", text.encode().hex()),))
    pump.wait_for(lambda: caller.ended, "the status")
    assert caller.status == (messages.UNAVAILABLE, text)
    assert caller.messages == [b"before the end"]


def test_we_read_that_a_method_is_not_there(pump: Pump) -> None:
    """Trailers-only, as grpcio writes them."""
    caller = call(pump, "Nothing")
    pump.wait_for(lambda: caller.ended, "the status")
    assert caller.status[0] == messages.UNIMPLEMENTED
    assert len(caller.headers) == 1


def test_a_grpcio_server_mirrors_our_metadata(pump: Pump) -> None:
    """Repeated keys included; grpcio turns binary values into base64 on the wire."""
    caller = call(
        pump, "Mirror", (("agentid", "a-1"), ("x-twice", "1"), ("x-twice", "2"), ("raw-bin", "AAEC"))
    )
    half_close(pump, caller)
    for headers, _ in caller.headers:
        got = [(key, value) for key, value in headers if key in dict(METADATA)]
        assert got == [("agentid", "a-1"), ("x-twice", "1"), ("x-twice", "2"), ("raw-bin", "AAEC")]
    assert len(caller.headers) == 2


def test_a_cancellation_by_us_reaches_a_grpcio_server(pump: Pump, handlers: Handlers) -> None:
    """Its handler is cancelled, and the connection continues."""
    caller = call(pump, "Echo")
    pump.do(lambda: caller.send(b"x"))
    pump.wait_for(lambda: caller.messages, "the echo")
    stream = caller.stream
    assert stream is not None
    pump.do(lambda: stream.reset(f.CANCEL))
    assert handlers.cancelled.wait(PATIENCE_SECONDS)
    again = call(pump, "Echo")
    pump.do(lambda: again.send(b"again"))
    half_close(pump, again)
    assert again.messages == [b"again"]


def test_a_grpcio_server_answers_our_pings(pump: Pump) -> None:
    """What our keepalive relies on."""
    pongs: list[int] = []
    pump.http2.on_pong = lambda: pongs.append(1)
    caller = call(pump, "Echo")
    pump.do(lambda: caller.send(b"x"))
    pump.wait_for(lambda: caller.messages, "the echo")
    pump.do(pump.http2.ping)
    pump.wait_for(lambda: pongs, "the pong")


def test_a_message_that_is_too_large_for_grpcio_fails_alone(pump: Pump) -> None:
    """Grpcio's limit is ours too: 4 MiB."""
    caller = call(pump, "Echo")
    pump.do(lambda: caller.send(bytes(messages.MESSAGE_BYTES_MAX + 1)))
    pump.wait_for(lambda: caller.ended or caller.reset, "the refusal")
    assert caller.status[0] == messages.RESOURCE_EXHAUSTED
    again = call(pump, "Echo")
    pump.do(lambda: again.send(b"again"))
    half_close(pump, again)
    assert again.messages == [b"again"]
