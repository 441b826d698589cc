"""Scripted conversations with the cores: send packets, expect the answers; an unexpected answer fails.

A harness holds one core with a clock that only the script moves. Its peers are real connections, joined to
the core's in memory, and the script must expect every packet that they receive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_network
from random import Random
from types import TracebackType
from typing import Self, TypeVar

from bootbridge.metrics import Registry
from bootbridge.ports.byte_ports import ByteHandler, DialResult
from bootbridge.ports.timers import RunningClock, Timers
from bootbridge.tunnel import extension
from bootbridge.tunnel.agent_core import AgentCore, ServerStream
from bootbridge.tunnel.agent_credentials import AgentCredentials
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.agent_registry import Strategy
from bootbridge.tunnel.agent_stream import AgentStream
from bootbridge.tunnel.frontend import ConnectFrontend
from bootbridge.tunnel.proxy_core import AGENT_PATH, PROXY_PATH, Authenticator, Limits, ProxyCore
from bootbridge.tunnel.server_metrics import ServerMetrics
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.frames import CANCEL
from bootbridge.wire.hpack_headers import Headers, values_of
from bootbridge.wire.http2_connection import Http2Connection
from bootbridge.wire.http2_stream import Stream

PacketT = TypeVar("PacketT", bound=p.Packet)


class MemoryPort:
    """A byte port in memory; the test decides how many of the written bytes its peer takes."""

    half_closes = True  # TLS does not

    def __init__(self) -> None:
        self.handler: ByteHandler
        self.written = bytearray()  # what the peer has taken
        self.waiting = bytearray()  # what it has not
        self.stalled = False
        self.paused = False
        self.finished = False
        self.closed = False
        self.aborted = False

    @property
    def backlog(self) -> int:
        return len(self.waiting)

    @property
    def state(self) -> str:
        if self.aborted:
            return "aborted"
        return "closed" if self.closed else "finished" if self.finished else "open"

    def write(self, data: p.Buffer) -> None:
        if not (self.closed or self.aborted):
            self.waiting += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    @property
    def unread(self) -> bool:
        return bool(self.waiting)

    def finish(self) -> bool:
        if not self.half_closes:
            self.close()
            return False
        self.finished = True
        return True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        if not self.closed:
            self.aborted = self.closed = True

    def flush(self) -> bool:
        if self.stalled or not self.waiting:
            return False
        self.take(len(self.waiting))
        return True

    def take(self, size: int) -> None:
        """The peer reads up to ``size`` of the waiting bytes."""
        self.written += self.waiting[:size]
        del self.waiting[:size]
        if not self.closed:
            self.handler.on_drained()


class Harness:
    """A clock, wires and ports; ``settle`` delivers until no bytes are in flight."""

    def __init__(self) -> None:
        self.now = 0.0
        self.clock = RunningClock(lambda: self.now)
        self.timers = Timers(self.clock.now)
        self.registry = Registry()
        self.event_log = RecordedEvents()
        self.peers: list[Peer] = []
        self._wires: list[Wire] = []
        self._ports: list[MemoryPort] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.settle()
            unexpected = {peer.name: peer.received for peer in self.peers if peer.received}
            assert unexpected == {}, "the script ended before these were expected"

    def settle(self) -> None:
        while self._move():
            pass

    def _move(self) -> bool:
        moved = [wire.move() for wire in self._wires] + [port.flush() for port in self._ports]
        return any(moved)

    def after(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.now + seconds
        self.settle()
        while (deadline := self.clock.set_alarm(self.timers.next_deadline())) <= end:
            self.now = max(self.now, deadline)
            self.timers.fire_due()
            self.settle()
        self.now = end

    def pause(self, seconds: float) -> None:
        """The process itself does not run for so long; its peers do."""
        self.clock.set_alarm(self.timers.next_deadline())
        self.now += seconds
        self.clock.take_resumed()

    def add_port(self, port: MemoryPort) -> MemoryPort:
        self._ports.append(port)
        return port

    def join(self, one: Http2Connection, other: Http2Connection) -> Wire:
        wire = Wire(one, other)
        self._wires.append(wire)
        return wire


class RecordedEvents:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, message: str, **fields: object) -> None:
        self.lines.append((message, fields))

    warning = debug = info

    def about(self, message: str) -> list[dict[str, object]]:
        return [fields for text, fields in self.lines if text == message]


class Wire:
    """Two joined connections; while ``stalled``, the second one does not read."""

    def __init__(self, core: Http2Connection, peer: Http2Connection) -> None:
        self.core = core
        self.peer = peer
        self.stalled = False
        self._undelivered = b""

    def move(self) -> bool:
        moved = self._deliver(self.peer, self.core)
        self._undelivered += b"".join(self.core.take_output())
        if self.stalled:
            self.core.flushed(len(self._undelivered) < 256 * 1024)
            return moved
        data, self._undelivered = self._undelivered, b""
        if data:
            self.peer.receive(data)
            self.core.flushed(True)
        return moved or bool(data)

    @staticmethod
    def _deliver(source: Http2Connection, target: Http2Connection) -> bool:
        data = b"".join(source.take_output())
        if data:
            target.receive(data)
            source.flushed(True)
        return bool(data)


class Peer:
    """The other end of a packet stream, driven by the script."""

    def __init__(self, harness: Harness, name: str) -> None:
        self.harness = harness
        self.name = name
        self.received: list[p.Packet] = []
        self.headers: list[tuple[Headers, bool]] = []
        self.over = ""
        self.stream: Stream
        self.wire: Wire
        self._reader = grpc.MessageReader(self._on_message)
        self._queue: list[bytes] = []
        harness.peers.append(self)

    # --- steps of a script

    def send(self, *packets: p.Packet) -> Self:
        for packet in packets:
            body = p.encode(packet)
            self._queue.append(grpc.message_prefix(len(body)) + body)
        self._push()
        self.harness.settle()
        return self

    def expect(self, *packets: p.Packet) -> Self:
        """Asserts that exactly these packets arrived since the last expectation, in this order."""
        self.harness.settle()
        received, self.received = self.received, []
        assert received == list(packets)
        return self

    def expect_one(self, kind: type[PacketT]) -> PacketT:
        self.harness.settle()
        (packet,) = self.received
        assert isinstance(packet, kind)
        self.received.clear()
        return packet

    def expect_nothing(self) -> Self:
        return self.expect()

    def disconnect(self) -> None:
        """Breaks the whole connection."""
        self.wire.core.lost("connection reset by peer")
        self.harness.settle()

    def cancel(self) -> None:
        """Cancels the stream; its connection stays open."""
        self.stream.reset(CANCEL)
        self.harness.settle()

    def bytes_of(self, connect_id: int) -> bytes:
        """Removes the DATA packets of one connection from ``received`` and returns their payload."""
        self.harness.settle()
        mine = [x for x in self.received if isinstance(x, p.Data) and x.connect_id == connect_id]
        self.received = [x for x in self.received if x not in mine]
        return b"".join(x.data for x in mine)

    @property
    def status(self) -> int:
        """The gRPC status with which the core ended the call."""
        self.harness.settle()
        (trailers,) = [headers for headers, end in self.headers if end]
        return grpc.status_of(trailers)[0]

    # --- StreamHandler

    def on_headers(self, headers: Headers, end: bool) -> None:
        self.headers.append((headers, end))

    def on_data(self, buffer: p.Buffer, start: int, end: int) -> None:
        self._reader.receive(buffer, start, end)

    def on_end(self) -> None:
        self.over = self.over or "ended"

    def on_reset(self, code: int, reason: str) -> None:
        self.over = self.over or reason

    def on_ready(self) -> None:
        self._push()

    def _push(self) -> None:
        while self._queue and self.stream.ready:
            self.stream.send(self._queue.pop(0))

    def _on_message(self, buffer: p.Buffer, start: int, end: int) -> None:
        self.received.append(p.decode(bytes(buffer[start:end])))

    def opened(self, stream: Stream) -> Self:
        self.stream = stream
        return self


class Dials:
    """A dialler whose dials the script answers."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.requested: list[MemoryDial] = []

    def dial(self, protocol: str, address: str, result: DialResult) -> MemoryDial:
        dial = MemoryDial(self._harness, address, result)
        self.requested.append(dial)
        return dial


class MemoryDial:
    def __init__(self, harness: Harness, address: str, result: DialResult) -> None:
        self._harness = harness
        self._result = result
        self.address = address
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def succeed(self) -> MemoryPort:
        port = self._harness.add_port(MemoryPort())
        port.handler = self._result.on_dialled(port)
        self._harness.settle()
        return port

    def fail(self, error: str, *, timed_out: bool = False) -> None:
        self._result.on_dial_failed(error, timed_out)
        self._harness.settle()


class ConnectCaller:
    """An HTTP CONNECT caller on a memory port."""

    def __init__(self, harness: ServerHarness) -> None:
        self._harness = harness
        self.port = harness.add_port(MemoryPort())
        self.port.handler = ConnectFrontend(harness.core, self.port)

    def send(self, data: bytes) -> Self:
        assert not self.port.paused, "a paused caller is not read from"
        self.port.handler.on_bytes(memoryview(data))
        self._harness.settle()
        return self

    def connect(self, address: str = "10.0.0.1:80") -> Self:
        return self.send(f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())

    def end(self, *, gone: bool = False) -> Self:
        self.port.handler.on_eof(gone)
        self._harness.settle()
        return self

    def expect(self, data: bytes) -> Self:
        """Asserts that exactly these bytes arrived since the last expectation."""
        self._harness.settle()
        received = bytes(self.port.written)
        self.port.written.clear()
        assert received == data
        return self

    def expect_status(self, status: int) -> Self:
        self._harness.settle()
        assert self.port.written.startswith(f"HTTP/1.1 {status} ".encode()), bytes(self.port.written)
        self.port.written.clear()
        return self


OK = b"HTTP/1.1 200 Connection Established\r\n\r\n"


class ServerHarness(Harness):
    """A proxy server's core, with scripted agents and callers."""

    def __init__(
        self,
        *,
        strategies: Sequence[Strategy] = (Strategy.DEFAULT,),
        dial_seconds: float = 30.0,
        stall_seconds: float = 10.0,
        agent_age_seconds: float = 0.0,
        first_agent_seconds: float = 0.0,
        authenticate: Authenticator | None = None,
    ) -> None:
        super().__init__()
        self.metrics = ServerMetrics(self.registry)
        self.dials = Dials(self)
        self.core = ProxyCore(
            strategies=strategies,
            direct_cidrs=[ip_network("192.0.2.0/24")],
            server_id="server-1",
            server_count=lambda: 1,
            limits=Limits(dial_seconds, stall_seconds, agent_age_seconds, first_agent_seconds),
            timers=self.timers,
            wall_clock=self.timers.now,
            rng=Random(7),
            metrics=self.metrics,
            event_log=self.event_log,
            dialler=self.dials,
            authenticate=authenticate,
        )

    def agent(
        self,
        agent_id: str = "a",
        *,
        go_like: bool = False,
        identifiers: str = "",
        credentials: AgentCredentials | None = None,
    ) -> Peer:
        metadata = [("agentid", agent_id), ("agentidentifiers", identifiers)]
        if not go_like:
            metadata.append((extension.KEY, extension.offer()))
        on_request = partial(self.core.on_agent_request, credentials=credentials)
        return self._peer(agent_id, AGENT_PATH, metadata, on_request)

    def agent_call(self, metadata: list[tuple[str, str]]) -> Peer:
        """A call on the agent port with this metadata."""
        return self._peer("caller of the agent port", AGENT_PATH, metadata, self.core.on_agent_request)

    def grpc_caller(self) -> Peer:
        return self._peer("caller", PROXY_PATH, [], self.core.on_proxy_request)

    def connect_caller(self) -> ConnectCaller:
        return ConnectCaller(self)

    def _peer(
        self, name: str, path: str, metadata: list[tuple[str, str]], on_request: Callable[..., object]
    ) -> Peer:
        peer = Peer(self, name)
        core, far = Http2Connection(client=False, on_request=on_request), Http2Connection(client=True)  # type: ignore[arg-type]
        peer.wire = self.join(core, far)
        far.open_stream(grpc.request_headers(path, "server", metadata), peer.opened)
        self.settle()
        return peer

    def stream_of(self, agent: Peer) -> AgentStream:
        """Returns the core's object for a scripted agent."""
        return next(
            stream for stream in self.core.agent_registry if stream.stream.connection is agent.wire.core
        )

    # --- established connections

    def grpc_route(self, agent: Peer, connect_id: int = 1, address: str = "10.0.0.1:80") -> Peer:
        caller = self.grpc_caller().send(p.DialRequest("tcp", address, 9))
        self.accept(agent, connect_id)
        return caller.expect(p.DialResponse("", connect_id, 9))

    def connect_route(self, agent: Peer, connect_id: int = 1, address: str = "10.0.0.1:80") -> ConnectCaller:
        caller = self.connect_caller().connect(address)
        self.accept(agent, connect_id)
        return caller.expect(OK)

    @staticmethod
    def accept(agent: Peer, connect_id: int) -> None:
        """The agent accepts its one pending dial request."""
        dial = agent.expect_one(p.DialRequest)
        agent.send(p.DialResponse("", connect_id, dial.random))

    def failures(self, reason: str) -> float:
        return self.metrics.dial_failure_count.labels(reason).value


class AgentHarness(Harness):
    """An agent's core, with scripted servers, and endpoints on memory ports."""

    def __init__(self, *, stall_seconds: float = 10.0) -> None:
        super().__init__()
        self.metrics = AgentMetrics(self.registry)
        self.dials = Dials(self)
        self.core = AgentCore(
            agent_id="a",
            identifiers="",
            stall_seconds=stall_seconds,
            timers=self.timers,
            wall_clock=self.timers.now,
            metrics=self.metrics,
            event_log=self.event_log,
            dialler=self.dials,
        )

    def server(self, *, go_like: bool = False) -> Peer:
        peer = Peer(self, "server")
        offered: list[str] = []

        def on_request(stream: Stream, headers: Headers) -> Peer:
            offered.extend(values_of(headers, extension.KEY))
            metadata = [("serverid", "s"), ("servercount", "1")]
            if not go_like:
                metadata.append((extension.KEY, extension.offer()))
            stream.send_headers(grpc.response_headers(metadata))
            return peer.opened(stream)

        core, far = Http2Connection(client=True), Http2Connection(client=False, on_request=on_request)
        peer.wire = self.join(core, far)
        self.core.connect(core, "server", None, _on_answer)
        self.settle()
        assert offered == [extension.offer()]
        peer.headers.clear()
        return peer

    def endpoint(self, server: Peer, random: int = 5, connect_id: int = 1) -> MemoryPort:
        """A dial that succeeded."""
        server.send(p.DialRequest("tcp", "10.0.0.1:80", random))
        port = self.dials.requested.pop().succeed()
        server.expect(p.DialResponse("", connect_id, random))
        return port

    def send_from_endpoint(self, port: MemoryPort, data: bytes) -> None:
        """The endpoint sends bytes to the agent."""
        port.handler.on_bytes(memoryview(data))
        self.settle()


def _on_answer(stream: ServerStream) -> None:
    return None
